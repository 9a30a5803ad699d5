"""Measure an engine's text view as a route.

`python -m harness engine-routes --engine sglang --url URL`

Guarantees: the fingerprint is measured on one survey and judged on another. Every accepted rebuild is compared with the
ids that the same answer carries. Exit 1 for a row with other ids than the engine's, whatever its grade, and for a
needless refusal.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.emulator.survey import SurveyedAnswer, questions
from harness.emulator.traits import CALLS_FROM_WORST, measured
from harness.engines.cassettes import played
from harness.engines.chat import ENGINES, EngineError, ask, exchange_of, thinking_of, trips_of
from harness.live.fingerprint_diff import lines_of
from harness.measures.fidelity import needless
from harness.measures.fingerprints import FOLDER, table
from pipeline.base.binomial import clopper_pearson_upper
from pipeline.base.screen import say, show_text
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.generation.engines.openrouter import NoAnswerError
from pipeline.proof.answer import delta_texts
from pipeline.proof.fingerprint import Fingerprint, Trait, file_name, fingerprint_of
from pipeline.proof.oracle import judged
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.proof.stream_deltas import without_repeats
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Completion, Evidence, Reason, Refusal, RefusedError, TokenRow

EACH = 160
LEARN = 900
SEED = 50_000_000
APART = 10_000_000
"""How far the seeds of the two surveys lie apart."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer, rebuilt from text, and its outcome by ids."""

    exchange: SurveyedAnswer
    row: TokenRow | Refusal
    by_ids: str

    @property
    def wrong(self) -> bool:
        """Whether ids were accepted that are not the engine's."""
        return self.exchange.is_wrong(self.row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 for a wrong row or needless refusal.

    2 where the engine did not answer.
    """
    parser = argparse.ArgumentParser(prog="python -m harness engine-routes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument("--url", required=True, metavar="http://127.0.0.1:PORT", help="where the engine listens")
    parser.add_argument("--each", type=int, default=EACH, metavar="N", help=f"answers a way to ask (default {EACH})")
    parser.add_argument("--learn", type=int, default=LEARN, metavar="N", help=f"the same, to learn from ({LEARN})")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--write", action="store_true", help="write the fingerprints to goldens/fingerprints")
    parser.add_argument("--source", default="", metavar="TEXT", help="what the fingerprints say they were measured on")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the answers there, one JSON object a line")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    fmt = open_format("tiny-kimi")
    try:
        learned = survey(options.engine, options.url, options.learn, options.seed + APART, fmt)
        exchanges = survey(options.engine, options.url, options.each, options.seed, fmt, keep=options.keep)
    except (EngineError, NoAnswerError, OSError) as error:
        say(f"error: {error}")
        return 2
    known = with_scripts(measured(learned, fmt), options.engine, fmt)
    if options.write:
        write(known, options.source or options.engine)
    result = report([judged_by(known, one, fmt) for one in exchanges], fmt)
    show_text(json.dumps(result) if options.json else "".join(map(table, known)) + shown(result))
    return 1 if result["wrong"] or result["needless"] else 0


def survey(
    engine: str, url: str, each: int, seed: int, fmt: Format, *, keep: Path | None = None
) -> list[SurveyedAnswer]:
    """Return `each` answers a way to ask, every seventh cut.

    The length cuts them.
    """
    asked = list(questions(trips_of(engine), each, seed=seed, cut_every=7))
    answers = ask(engine, url, asked, fmt)
    if keep is not None:
        lines = ({"id": one.question.prompt.id, "body": one.raw.decode()} for one in answers)
        keep.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return [exchange_of(one, fmt) for one in answers]


def with_scripts(known: Sequence[Fingerprint], engine: str, fmt: Format) -> list[Fingerprint]:
    """Return the fingerprints, made worse by scripted completions.

    A model seldom shows what a scripted call shows.
    """
    said = [one.exchange for trip in trips_of(engine) for one in played(engine, trip, fmt)]
    scripted = {one.stream: one.traits for one in measured(said, fmt)}
    return [
        replace(one, traits={**one.traits, **dict(_worse(one.traits, scripted.get(one.stream, {})))}) for one in known
    ]


def _worse(seen: Mapping[str, Trait], scripted: Mapping[str, Trait]) -> Iterator[tuple[str, Trait]]:
    for name, from_worst in CALLS_FROM_WORST.items():
        both = [traits[name] for traits in (seen, scripted) if name in traits and traits[name].value in from_worst]
        if both:
            worst = min(both, key=lambda trait: from_worst.index(str(trait.value)))
            yield name, replace(worst, n=sum(trait.n for trait in both))


def judged_by(known: Sequence[Fingerprint], exchange: SurveyedAnswer, fmt: Format) -> Judged:
    """Rebuild one answer from its text and from its ids."""
    return Judged(exchange, rebuilt(exchange, fmt, known), _by_ids(exchange, fmt, known))


def rebuilt(exchange: SurveyedAnswer, fmt: Format, known: Sequence[Fingerprint]) -> TokenRow | Refusal:
    """Rebuild an answer from its text view."""
    completion = exchange.completion
    if not isinstance(completion, Completion):
        return completion.refusal
    try:
        fingerprint = fingerprint_of(completion, known)
    except RefusedError as error:
        return error.refusal
    asked = Expected(exchange.trip.profile.name, fingerprint.model, exchange.max_tokens)
    return reconstruct(exchange.prompt, completion, fmt, fingerprint, asked)


def _by_ids(exchange: SurveyedAnswer, fmt: Format, known: Sequence[Fingerprint]) -> str:
    """Return the outcome of the same answer with its ids.

    It is the grade, or the reason of a refusal.
    """
    raw, named = exchange.raw, exchange.named
    try:
        whole = completion_of_sse(raw.decode()) if exchange.trip.stream else completion_of_json(raw)
        completion = replace(whole, provider=named)
        fingerprint = fingerprint_of(completion, known)
    except RefusedError as error:
        return f"refused:{error.refusal.reason}"
    asked = Expected(named, fingerprint.model, exchange.max_tokens)
    row = reconstruct(exchange.prompt, completion, fmt, fingerprint, asked)
    if isinstance(row, Refusal):
        return f"refused:{row.reason}"
    truth = exchange.truth
    same = (row.prompt_ids, row.output_ids) == (truth.prompt_ids, truth.output_ids)
    return f"{row.evidence}, {judged(row, exchange.prompt, completion, fmt, known, asked)}" if same else "wrong"


def report(found: Sequence[Judged], fmt: Format) -> dict[str, Any]:
    """Return counts, wrong rows and needless refusals.

    Counts are by way to ask, by grade and by reason.
    """
    accepted = [one for one in found if isinstance(one.row, TokenRow)]
    wrong = [one for one in accepted if one.wrong and not is_resplit(one, fmt)]
    ways = Counter(f"{one.exchange.trip.name} {thinking_of(one.exchange.prompt)}" for one in found)
    refusals = ((one.exchange.trip.name, one.row) for one in found if isinstance(one.row, Refusal))
    refused = Counter(f"{way}: {row.reason} ({row.field})" for way, row in refusals)
    return {
        "answers": len(found),
        "non_canonical": sum(one.exchange.truth.noncanonical for one in found),
        "cut": sum(one.exchange.truth.cut for one in found),
        "ways": dict(sorted(ways.items())),
        "accepted": {str(grade): _grade(accepted, grade) for grade in Evidence},
        "by_ids": dict(sorted(Counter(one.by_ids.partition(",")[0] for one in found).items())),
        "refused": dict(sorted(refused.items())),
        "wrong": [_described(one) for one in wrong] + [_described(one) for one in found if one.by_ids == "wrong"],
        "needless": [_described(one) for one in found if _is_needless(one, fmt)],
    }


def _is_needless(one: Judged, fmt: Format) -> bool:
    """Whether neither the profile nor this answer explains the refusal."""
    if not isinstance(one.row, Refusal) or not needless(one.exchange, one.row, fmt):
        return False
    return not _is_lost(one, fmt) and not _may_repeat(one)


def _is_lost(one: Judged, fmt: Format) -> bool:
    """Whether the view lacks text, a call or a section.

    The ids hold it, so the view's count cannot close.
    """
    completion = one.exchange.completion
    if not isinstance(completion, Completion):
        return True
    text = (completion.reasoning or "") + (completion.content or "")
    text += "".join(call.id + call.arguments for call in completion.tool_calls)
    markers = () if completion.tool_calls else tuple(fmt.tool_markers().values())
    ids = one.exchange.truth.output_ids
    visible = [token for token in ids if token in markers or not fmt.tokenizer.is_control(token)]
    return len(text) < len(fmt.tokenizer.decode_bytes(visible).decode("utf-8", errors="replace"))


def _may_repeat(one: Judged) -> bool:
    """Whether the stream may have sent a delta twice.

    Servers were seen to do so.
    """
    completion = one.exchange.completion
    if not isinstance(one.row, Refusal) or one.row.reason is not Reason.STREAM_INCONSISTENT:
        return False
    fields = (
        (delta_texts(completion, name) for name in ("reasoning", "content"))
        if isinstance(completion, Completion)
        else ()
    )
    return any(next(without_repeats(field), None) is not None for field in fields)


def is_resplit(one: Judged, fmt: Format) -> bool:
    """Whether a wrong row is the stated risk of `counted`.

    That is the same bytes in as many tokens.
    """
    row, truth = one.row, one.exchange.truth
    return (
        isinstance(row, TokenRow)
        and row.evidence is Evidence.COUNTED
        and row.prompt_ids == truth.prompt_ids
        and len(row.output_ids) == len(truth.output_ids)
        and fmt.tokenizer.decode_bytes(row.output_ids) == fmt.tokenizer.decode_bytes(truth.output_ids)
    )


def _grade(accepted: Iterable[Judged], grade: Evidence) -> dict[str, Any]:
    rows = [one for one in accepted if isinstance(one.row, TokenRow) and one.row.evidence is grade]
    wrong = sum(one.wrong for one in rows)
    return {
        "rows": len(rows),
        "wrong": wrong,
        "upper95": round(clopper_pearson_upper(wrong, len(rows)), 6) if rows else None,
    }


def _described(one: Judged) -> dict[str, Any]:
    row = one.row
    return {
        "asked": one.exchange.prompt.id,
        "true": one.exchange.truth.output_ids,
        "made": row.output_ids if isinstance(row, TokenRow) else f"{row.reason}: {row.detail}",
        "by_ids": one.by_ids,
    }


def write(found: Iterable[Fingerprint], source: str) -> None:
    """Write one file a fingerprint."""
    recorded_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for fingerprint in found:
        text = "".join(lines_of(fingerprint, recorded_at, source))
        (FOLDER / file_name(fingerprint)).write_text(text, encoding="utf-8", newline="\n")


def shown(result: dict[str, Any]) -> str:
    """Return the report as lines."""
    lines = [f"answers {result['answers']}, sampled non-canonically {result['non_canonical']}, cut {result['cut']}"]
    for key in ("ways", "accepted", "by_ids", "refused"):
        lines.append(key)
        lines += [f"  {name:60} {counts}" for name, counts in result[key].items()]
    lines += [f"wrong rows: {len(result['wrong'])}", *map(str, result["wrong"])]
    lines += [f"needless refusals: {len(result['needless'])}", *map(str, result["needless"])]
    return "\n".join(lines) + "\n"
