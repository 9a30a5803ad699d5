"""Count needless refusals of recorded answers, by reason.

`python -m harness refusals [EXCHANGES.jsonl]`

Guarantees: every recorded chat completion of a model whose vocabulary is found is read, and is accepted or refused as
`reconstruct` would. Fingerprints are those that `python -m pipeline fingerprint` learns from the same file. So few
answers prove no trait: what was learned is taken for proven, and what was not learned has its kindest value, with which
most answers of a faithful route are accepted (`KINDEST`). So what is still refused is refused for what the answer says.

A refusal is needless where the answer is well-formed and its counts agree: it says how it ended, its text holds no
U+FFFD and no marker that may be text, and the tokens of its text in the family's layout are as many as were counted,
as are those of its prompt. Of such an answer another reading exists only where two faults cancel. This is judged by the
sums of the fingerprints' votes (`TokenSum`), not by the proof. Calls that do not show how the model wrote them have no
such sum. Where all of it holds but the prompt is not rendered here, or has another count, the refusal is counted as due
to the prompt alone: another template would be needed, not another proof.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pipeline.base.screen import say, show, show_json, show_text
from pipeline.fingerprints.exchanges import ExchangesError
from pipeline.fingerprints.harvest import Harvest, harvest_of_file
from pipeline.fingerprints.learn import LearnedFingerprint, learn
from pipeline.fingerprints.observations import Observation, requested_prompt
from pipeline.formats.registry import FORMATS, find_tokenizer, open_format
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Json, Prompt, Reason, RefusedError, TokenRow

RECORDINGS = Path("recordings") / "exchanges.jsonl"
MANY = 1000
"""Answers that a trait is said to be proven on."""
KINDEST: Mapping[TraitName, Json] = {
    TraitName.END_COUNTED: True,
    TraitName.END_COUNTED_TOOLS: True,
    TraitName.THINK_CLOSE_COUNTED: True,
    TraitName.UNCLOSED: "reasoning",
    TraitName.COUNT_NATIVE: True,
    TraitName.PROMPT_PREFIX: [],
    TraitName.PROMPT_PREFIX_TOOLS: [],
    TraitName.SEAM: "kept",
    TraitName.LINE_ENDS: "kept",
    TraitName.MARKERS: "raw",
    TraitName.LEAKS: False,
    TraitName.TOOL_IDS: "verbatim",
    TraitName.TOOL_ARGUMENTS: "verbatim",
    TraitName.TURN_END: "by_role",
    TraitName.THINK_LEAD: "written",
    TraitName.PROMPT_SETTINGS: {"date": "2025-08-05", "effort": "medium"},
}
"""Values of a route that shows and counts everything; a stream's deltas are whole tokens or prove nothing."""


@dataclass(frozen=True, slots=True)
class RefusalVerdict:
    """What became of one recorded answer; None is accepted."""

    id: str
    family: str
    reason: Reason | None
    needless: bool = False
    by_prompt: bool = False
    detail: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 where there is nothing to read."""
    parser = argparse.ArgumentParser(prog="python -m harness refusals", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("exchanges", type=Path, nargs="?", help=f"default: $DRAFTER_GATE_SHARED/{RECORDINGS}")
    parser.add_argument("--against", type=Path, metavar="FILE", help="what --json printed before; prints both")
    parser.add_argument("--needless", action="store_true", help="list the needless refusals")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    path = options.exchanges or Path(os.environ.get("DRAFTER_GATE_SHARED", "")) / RECORDINGS
    try:
        before = json.loads(options.against.read_bytes()) if options.against else {}
        found = harvested(path)
    except (ExchangesError, OSError, ValueError) as error:
        say(f"error: {error}")
        return 2
    verdicts = [verdict(one, prompt, fingerprint) for one, prompt, fingerprint in cases(found)]
    report = tally(verdicts)
    if options.json:
        show_json(report)
    else:
        show_text(table(report, before))
    if options.needless:
        show(*(f"{one.id} {one.family}: {one.reason} ({one.detail})" for one in verdicts if one.needless))
    return 0


def harvested(path: Path) -> Harvest:
    """Return a file's answers, of all vocabularies found.

    Raises ExchangesError.
    """
    return harvest_of_file(path, {name: open_format(name) for name in FORMATS if find_tokenizer(name) is not None})


def cases(found: Harvest) -> Iterator[tuple[Observation, Prompt, Fingerprint]]:
    """Yield each answer with its prompt and its kindest fingerprint.

    An answer to what makes no prompt is left out.
    """
    routes = {one.route: kindest(one) for one in learn(found)}
    for one in found.answers:
        try:
            prompt = requested_prompt(one.exchange.id, one.request, one.model)
        except RefusedError:
            continue
        yield one, prompt, routes[one.route]


def kindest(learned: LearnedFingerprint) -> Fingerprint:
    """Return what was learned as proven, the rest kindest.

    A prefix that no control token explains was learned of another prompt than ours, and is no trait.
    """
    values: dict[TraitName, Json] = dict(KINDEST)
    for name, one in learned.traits.items():
        is_number = isinstance(one.value, int) and not isinstance(one.value, bool)
        if one.value is not None and not is_number:
            values[name] = one.value
    provider, model, stream = learned.route
    return Fingerprint(
        provider, model, stream, {str(name): Trait(value, MANY, proven=True) for name, value in values.items()}
    )


def verdict(one: Observation, prompt: Prompt, fingerprint: Fingerprint) -> RefusalVerdict:
    """Reconstruct one answer and say whether its refusal is needless."""
    expected = Expected(max_tokens=one.max_tokens, stop=bool(one.request.get("stop")))
    row = reconstruct(prompt, one.completion, one.fmt, fingerprint, expected)
    if isinstance(row, TokenRow):
        return RefusalVerdict(one.exchange.id, one.model.format, None)
    needless = answer_agrees(one, fingerprint)
    by_prompt = needless and not prompt_agrees(one, fingerprint)
    return RefusalVerdict(
        one.exchange.id, one.model.format, row.reason, needless and not by_prompt, by_prompt, row.detail
    )


def answer_agrees(one: Observation, fingerprint: Fingerprint) -> bool:
    """Return whether an answer is well-formed and its count agrees."""
    if (found := one.sum) is None:
        return False
    end = fingerprint.proven(TraitName.END_COUNTED_TOOLS if found.section else TraitName.END_COUNTED)
    think = found.think if fingerprint.proven(TraitName.THINK_CLOSE_COUNTED) else 0
    return found.extra == think + (found.ended if end else 0)


def prompt_agrees(one: Observation, fingerprint: Fingerprint) -> bool:
    """Return whether the prompt is rendered and its count agrees."""
    if one.prompt_ids is None or (usage := one.completion.usage) is None:
        return False
    prefix = fingerprint.proven(TraitName.PROMPT_PREFIX_TOOLS if one.tools_sent else TraitName.PROMPT_PREFIX)
    return usage.prompt_tokens == len(one.prompt_ids) + (len(prefix) if isinstance(prefix, list) else 0)


KINDS = ("answers", "refused", "needless", "by_prompt")
Report: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Family, one of `KINDS`, and how many by reason."""


def tally(verdicts: Sequence[RefusalVerdict]) -> dict[str, dict[str, dict[str, int]]]:
    """Return accepted, refused and needless answers of each family.

    `kimi` is all of Kimi's releases together.
    """
    found: dict[str, dict[str, Counter[str]]] = {}
    for one in verdicts:
        for family in (one.family, *(["kimi"] if one.family.startswith("kimi") else []), "all"):
            counts = found.setdefault(family, {kind: Counter() for kind in KINDS})
            counts["answers"]["accepted" if one.reason is None else "refused"] += 1
            if one.reason is not None:
                counts["refused"][str(one.reason)] += 1
                counts["needless"][str(one.reason)] += one.needless
                counts["by_prompt"][str(one.reason)] += one.by_prompt
    return {
        family: {kind: {name: n for name, n in sorted(counter.items()) if n} for kind, counter in counts.items()}
        for family, counts in sorted(found.items())
    }


def table(report: Report, before: Report) -> str:
    """Return a paragraph a family, with numbers from before."""
    lines: list[str] = []
    for family in report:
        counts, old = report[family], before.get(family, {})
        answers = sum(counts["answers"].values())
        told = [f"{kind} {_told(_total(counts, kind), _total(old, kind), before)}" for kind in KINDS[1:]]
        accepted = _told(counts["answers"].get("accepted", 0), old.get("answers", {}).get("accepted", 0), before)
        lines.append(f"{family}: {answers} answers, accepted {accepted}, {', '.join(told)}")
        for reason in sorted({*counts["refused"], *old.get("refused", {})}):
            each = [
                f"{kind} {_told(counts[kind].get(reason, 0), old.get(kind, {}).get(reason, 0), before)}"
                for kind in KINDS[1:]
            ]
            lines.append(f"  {reason:20} {', '.join(each)}")
    return "\n".join(lines) + "\n"


def _total(counts: Mapping[str, Mapping[str, int]], kind: str) -> int:
    return sum(counts.get(kind, {}).values())


def _told(number: int, was: int, before: Report) -> str:
    return f"{number} (before {was})" if before else str(number)
