"""Compare our reading of completions with other parsers' readings.

`python -m harness parsers [--drawn N --python PYTHON]`

Guarantees: every recorded case is compared. A case that differs must stand in the list of explained differences, and a
case in that list must differ. With `--drawn N` the engine's parsers run now, in their own environment, in one process,
on texts that hypothesis draws; a difference that no rule explains is printed with its text. The others take text, we
take ids: their text with every control token's name as its id. A refusal of ours is no difference, since it claims
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.measures.parsers.rules import MADE_UP, RULES, explained, reading_of, summary
from harness.strategies.texts import Drawn, ids_of_text
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show, show_text
from pipeline.formats.format import Format, Parts
from pipeline.formats.kimi.format import ARGUMENT_BEGIN, CALL_BEGIN
from pipeline.formats.registry import find_tokenizer, load_format, open_format
from pipeline.formats.tokenizer import KIMI_SHA256, load_tokenizer
from pipeline.records import Ids, RefusedError

EXPLAINED = ROOT / "tests" / "reference" / "parser_differences.json"
_CALL_ID = re.compile(r"functions\.(.+):\d+", re.DOTALL)


class ParserVerdict(StrEnum):
    """What one comparison showed."""

    EQUAL = "equal"
    REFUSED = "refused"
    DIFFERS = "differs"


class Calls(StrEnum):
    """How an oracle names tool calls.

    `IN_CONTENT`: it does not, and the section is content.
    """

    BY_ID = "by id"
    BY_NAME = "by name"
    IN_CONTENT = "in content"


@dataclass(frozen=True, slots=True)
class ParserReading:
    """One reading: texts, and calls as identity and arguments."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ParserCase:
    """One text, its reader, and what that read."""

    oracle: str
    name: str
    text: str
    theirs: ParserReading
    format: str
    thinking: bool
    calls: Calls = Calls.BY_ID


def cases(shared: Path) -> Iterator[ParserCase]:
    """Yield every recorded case of SGLang's and vLLM's parsers."""
    sglang = json.loads((shared / "sglang" / "kimi_parser_cases.json").read_text("utf-8"))
    vllm = json.loads((shared / "sglang" / "vllm_kimi_parser_cases.json").read_text("utf-8"))
    yield from (_sglang_calls(case) for case in sglang["tool_cases"])
    yield from (_sglang_reasoning(case) for case in sglang["reasoning_cases"])
    yield from (_sglang_whole(case) for case in sglang["pipeline_cases"])
    yield from (_vllm("calls", case, case["thinking_off"], thinking=False) for case in vllm["tool_cases"])
    yield from (
        _vllm("reasoning", case, case["outcome"], thinking=case["thinking"]) for case in vllm["reasoning_cases"]
    )


def _sglang_calls(case: Mapping[str, Any]) -> ParserCase:
    told = case["nonstream"]
    calls = tuple((call["name"], call["parameters"]) for call in told["calls"])
    theirs = ParserReading("", told["normal_text"], calls)
    return ParserCase(
        "SGLang calls", case["name"], case["text"], theirs, "kimi-k2.5", thinking=False, calls=Calls.BY_NAME
    )


def _sglang_reasoning(case: Mapping[str, Any]) -> ParserCase:
    told, forced = case["nonstream"], case["force_reasoning"]
    theirs = ParserReading(told["reasoning_text"], told["normal_text"], ())
    name = f"{case['name']}, {case['parser']}, {_FORCED[forced]}"
    fmt = _format(case["text"], forced=bool(forced))
    return ParserCase("SGLang reasoning", name, case["text"], theirs, fmt, thinking=True, calls=Calls.IN_CONTENT)


def _sglang_whole(case: Mapping[str, Any]) -> ParserCase:
    forced = case["force_reasoning"]
    calls = tuple((call["id"], call["arguments"]) for call in case["tool_calls"])
    theirs = ParserReading(case["reasoning_content"] or "", case["content"] or "", calls)
    name = f"{case['name']}, {_FORCED[forced]}, {case['history_tool_calls']} calls before"
    return ParserCase(
        "SGLang whole", name, case["text"], theirs, _format(case["text"], forced=bool(forced)), thinking=True
    )


def _vllm(group: str, case: Mapping[str, Any], told: Mapping[str, Any], *, thinking: bool) -> ParserCase:
    calls = tuple((call["id"], call["arguments"]) for call in told["tool_calls"])
    theirs = ParserReading(told["reasoning"] or "", told["content"] or "", calls)
    fmt = _format(case["text"], forced=True) if thinking else "kimi-k2.5"
    name = f"{case['name']}, thinking {'on' if thinking else 'off'}"
    return ParserCase(f"vLLM {group}", name, case["text"], theirs, fmt, thinking)


_FORCED: Mapping[bool | None, str] = {True: "forced", False: "not forced", None: "by default"}


def _format(text: str, *, forced: bool) -> str:
    """Return the format whose prompt matches the case.

    A forced case had its thinking opened by the prompt. Both parsers skip a `<think>` that the model emits.
    """
    return "kimi-k2.5" if forced and not text.startswith("<think>") else "kimi-k2-thinking"


def our_reading(fmt: Format, ids: Ids, *, thinking: bool, calls: Calls) -> ParserReading:
    """Return our reading. Raises RefusedError where we refuse."""
    parts = fmt.parse(ids, thinking=thinking)
    if calls is Calls.IN_CONTENT:
        return ParserReading(parts.reasoning or "", _spelled(fmt, parts), ())
    content, found = _content_and_calls(fmt, parts)
    if calls is Calls.BY_NAME:
        matches = ((_CALL_ID.fullmatch(identity), identity, arguments) for identity, arguments in found)
        found = [(match[1] if match else identity, arguments) for match, identity, arguments in matches]
    return ParserReading(parts.reasoning or "", content, tuple(found))


def _spelled(fmt: Format, parts: Parts) -> str:
    """Return what follows the thinking, control tokens by their names."""
    pieces = [*parts.body, *([fmt.end_id] if parts.ended else [])]
    return "".join(piece if isinstance(piece, str) else str(fmt.tokenizer.name_of(piece)) for piece in pieces)


def _content_and_calls(fmt: Format, parts: Parts) -> tuple[str, list[tuple[str, str]]]:
    """Return the text outside the section, and each begun call.

    A call is its id and its arguments, as far as they came.
    """
    names = {token: name for name, token in fmt.tool_markers().items()}
    content, calls, last = "", list[list[str]](), ""
    for piece in parts.body:
        if isinstance(piece, int):
            last = names[piece]
            if last == CALL_BEGIN:
                calls.append(["", ""])
        elif last in (CALL_BEGIN, ARGUMENT_BEGIN):
            calls[-1][last == ARGUMENT_BEGIN] = piece
        else:
            content += piece
    return content, [(identity, arguments) for identity, arguments in calls]


def verdict_of(case: ParserCase, formats: Mapping[str, Format]) -> ParserVerdict:
    """Compare one case."""
    fmt = formats[case.format]
    try:
        ids = ids_of_text(fmt.tokenizer, case.text)
        ours = our_reading(fmt, ids, thinking=case.thinking, calls=case.calls)
    except RefusedError:
        return ParserVerdict.REFUSED
    return ParserVerdict.EQUAL if ours == case.theirs else ParserVerdict.DIFFERS


def formats_of(shared: Path) -> dict[str, Format]:
    """Return the cases' formats on Kimi's own vocabulary."""
    tokenizer = load_tokenizer(shared / "kimi", expect_sha256=KIMI_SHA256)
    return {name: load_format(name, tokenizer) for name in ("kimi-k2.5", "kimi-k2-thinking")}


def listed_differences() -> dict[str, dict[str, str]]:
    """Return the explained differences by oracle and case."""
    listed: dict[str, dict[str, list[str]]] = json.loads(EXPLAINED.read_text("utf-8"))
    return {
        oracle: {name: reason for reason, names in reasons.items() for name in names}
        for oracle, reasons in listed.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print the table; 1 for an unexplained difference.

    Also 1 for an explanation that is out of date.
    """
    parser = argparse.ArgumentParser(prog="python -m harness parsers", description=(__doc__ or "").split("\n")[0])
    given = os.environ.get("DRAFTER_GATE_SHARED")
    parser.add_argument(
        "--shared",
        type=Path,
        default=given,
        metavar="DIR",
        help="the folder of reference material; default: $DRAFTER_GATE_SHARED",
    )
    parser.add_argument("--drawn", type=int, metavar="N", help="compare on as many drawn texts, with parsers run live")
    parser.add_argument("--engine", choices=("sglang", "vllm"), default="sglang", help="whose parsers (default sglang)")
    parser.add_argument("--python", type=Path, metavar="VENV/bin/python", help="where the engine is installed")
    options = parser.parse_args(arguments)
    if options.drawn:
        if options.python is None:
            parser.error("--drawn needs --python: the environment of the parsers, as nox -s parsers makes it")
        return drawn(options.engine, options.python, options.drawn)
    if options.shared is None:
        parser.error("--shared or $DRAFTER_GATE_SHARED names the folder of recorded cases")
    verdicts = compared(options.shared)
    show_text(table(verdicts))
    wrong = unexplained(verdicts)
    show(*wrong)
    return 1 if wrong else 0


def drawn(engine: str, python: Path, number: int) -> int:
    """Compare with live parsers on drawn texts; exit status.

    1 for a difference that no rule explains, 2 where the parsers do not run.
    """
    from harness.strategies.texts import drawn_texts

    try:
        tally = compared_live(engine, python, drawn_texts(number), open_format("tiny-kimi"))
    except OracleError as error:
        say(f"error: {error}")
        return 2
    show_text(table_of(engine, tally))
    return 1 if tally.unexplained else 0


def compared(shared: Path) -> dict[str, dict[str, ParserVerdict]]:
    """Return every case's verdict, by oracle and name."""
    formats = formats_of(shared)
    found: dict[str, dict[str, ParserVerdict]] = {}
    for case in cases(shared):
        verdicts = found.setdefault(case.oracle, {})
        if case.name in verdicts:
            raise ValueError(f"{case.oracle}: two cases are called {case.name}")
        verdicts[case.name] = verdict_of(case, formats)
    return found


def unexplained(verdicts: Mapping[str, Mapping[str, ParserVerdict]]) -> list[str]:
    """Return a line for each unexplained difference and stale reason."""
    reasons = listed_differences()
    differing = {(oracle, name) for oracle, all_of in verdicts.items() for name in all_of if _differs(all_of[name])}
    listed = {(oracle, name) for oracle, names in reasons.items() for name in names}
    return [
        *(f"{oracle}: {name} differs, and {EXPLAINED.name} does not say why" for oracle, name in differing - listed),
        *(f"{oracle}: {name} stands in {EXPLAINED.name} and does not differ" for oracle, name in listed - differing),
    ]


def _differs(verdict: ParserVerdict) -> bool:
    return verdict is ParserVerdict.DIFFERS


def table(verdicts: Mapping[str, Mapping[str, ParserVerdict]]) -> str:
    """Return texts, equal, refused and explained counts by oracle."""
    lines = [f"{'oracle':18} {'texts':>6} {'equal':>6} {'refused':>8} {'explained':>10}"]
    reasons = listed_differences()
    for oracle, all_of in verdicts.items():
        seen = Counter(all_of.values())
        known = sum(_differs(verdict) and name in reasons.get(oracle, {}) for name, verdict in all_of.items())
        counts = f"{len(all_of):6} {seen[ParserVerdict.EQUAL]:6} {seen[ParserVerdict.REFUSED]:8} {known:10}"
        lines.append(f"{oracle:18} {counts}")
    return "\n".join(lines) + "\n"


SCRIPT = ROOT / "harness" / "measures" / "parsers" / "oracle.py"
SECONDS = 600
_ANOTHER_ID = "chatcmpl-tool-[0-9a-f]+"


class OracleError(Exception):
    """An engine's environment could not parse."""


@dataclass(slots=True)
class ParserTally:
    """Counts of compared texts by outcome."""

    texts: int = 0
    equal: int = 0
    refused: int = 0
    explained: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def compared_live(engine: str, python: Path, texts: Sequence[Drawn], fmt: Format) -> ParserTally:
    """Compare every text. Raises OracleError."""
    tally = ParserTally()
    for drawn, theirs in zip(texts, ask(engine, python, texts, fmt), strict=True):
        note(tally, engine, drawn, theirs, fmt)
    return tally


def ask(engine: str, python: Path, texts: Sequence[Drawn], fmt: Format) -> list[dict[str, Any]]:
    """Return what the engine's parsers read. Raises OracleError."""
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


def note(tally: ParserTally, engine: str, drawn: Drawn, answer: Mapping[str, Any], fmt: Format) -> None:
    """Count one comparison."""
    tally.texts += 1
    calls = tuple((MADE_UP if re.fullmatch(_ANOTHER_ID, one) else one, two) for one, two in answer["calls"])
    theirs = (answer["reasoning"], answer["content"], calls)
    try:
        ours = reading_of(fmt, fmt.parse(tuple(_ids(drawn, fmt)), thinking=drawn.thinking))
    except RefusedError:
        tally.refused += 1
        return
    if summary(ours) == theirs:
        tally.equal += 1
    elif (reasons := explained(ours, RULES[engine], theirs)) is not None:
        tally.explained += 1
        tally.reasons.update(reasons)
    else:
        tally.unexplained.append(f"{drawn}: we read {summary(ours)}, {engine} {theirs}")


def table_of(engine: str, tally: ParserTally) -> str:
    """Return counts, reasons, and what none explains."""
    counts = f"{tally.texts:6} {tally.equal:6} {tally.refused:8} {tally.explained:10}"
    lines = [
        f"{'oracle':18} {'texts':>6} {'equal':>6} {'refused':>8} {'explained':>10}",
        f"{engine + ' drawn':18} {counts}",
    ]
    lines += [f"  {count:6} {reason}" for reason, count in tally.reasons.most_common()]
    lines += [f"unexplained: {len(tally.unexplained)}", *tally.unexplained[:20]]
    return "\n".join(lines) + "\n"
