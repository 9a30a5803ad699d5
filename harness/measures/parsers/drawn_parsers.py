"""Our parse beside the engines' own parsers on drawn texts: equal, refused by us, or explained by a rule.

Guarantees: the parsers run in their own environment, in one process for all texts; an unexplained difference is told
with its text. A refusal of ours says nothing, so it says nothing wrong.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.measures.parsers.differential import ids_of_text
from harness.measures.parsers.rules import MADE_UP, RULES, explained, reading_of, said
from harness.strategies.texts import Drawn
from pipeline.base.paths import ROOT
from pipeline.formats.format import Format
from pipeline.formats.registry import find_tokenizer
from pipeline.records import RefusedError

SCRIPT = ROOT / "harness" / "parser_oracle.py"
SECONDS = 600
_ANOTHER_ID = "chatcmpl-tool-[0-9a-f]+"


class OracleError(Exception):
    """An engine's environment that could not parse."""


@dataclass(slots=True)
class Tally:
    """What became of the texts."""

    texts: int = 0
    equal: int = 0
    refused: int = 0
    explained: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def compared_live(engine: str, python: Path, texts: Sequence[Drawn], fmt: Format) -> Tally:
    """Every text compared. Raises OracleError."""
    tally = Tally()
    for drawn, theirs in zip(texts, ask(engine, python, texts, fmt), strict=True):
        note(tally, engine, drawn, theirs, fmt)
    return tally


def ask(engine: str, python: Path, texts: Sequence[Drawn], fmt: Format) -> list[dict[str, Any]]:
    """What the engine's parsers say to each text. Raises OracleError."""
    lines = ({"text": one.text, "thinking": one.thinking, "ids": _ids(one, fmt)} for one in texts)
    sent = "".join(json.dumps(line) + "\n" for line in lines)
    command = [str(python), "-I", str(SCRIPT), engine, str(find_tokenizer("tiny-kimi"))]
    try:
        done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OracleError(f"{engine}'s parsers did not run: {error}") from None
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(answers) != len(texts):
        raise OracleError(f"{engine}'s parsers gave {len(answers)} of {len(texts)} answers: {done.stderr[-600:]}")
    return answers


def _ids(drawn: Drawn, fmt: Format) -> list[int]:
    return list(ids_of_text(fmt.tokenizer, drawn.text))


def note(tally: Tally, engine: str, drawn: Drawn, answer: Mapping[str, Any], fmt: Format) -> None:
    """One comparison, counted."""
    tally.texts += 1
    calls = tuple((MADE_UP if re.fullmatch(_ANOTHER_ID, one) else one, two) for one, two in answer["calls"])
    theirs = (answer["reasoning"], answer["content"], calls)
    try:
        ours = reading_of(fmt, fmt.parse(tuple(_ids(drawn, fmt)), thinking=drawn.thinking))
    except RefusedError:
        tally.refused += 1
        return
    if said(ours) == theirs:
        tally.equal += 1
    elif (reasons := explained(ours, RULES[engine], theirs)) is not None:
        tally.explained += 1
        tally.reasons.update(reasons)
    else:
        tally.unexplained.append(f"{drawn}: we read {said(ours)}, {engine} {theirs}")


def table_of(engine: str, tally: Tally) -> str:
    """One line of counts, then the reasons and what none explains."""
    counts = f"{tally.texts:6} {tally.equal:6} {tally.refused:8} {tally.explained:10}"
    lines = [
        f"{'oracle':18} {'texts':>6} {'equal':>6} {'refused':>8} {'explained':>10}",
        f"{engine + ' drawn':18} {counts}",
    ]
    lines += [f"  {count:6} {reason}" for reason, count in tally.reasons.most_common()]
    lines += [f"unexplained: {len(tally.unexplained)}", *tally.unexplained[:20]]
    return "\n".join(lines) + "\n"
