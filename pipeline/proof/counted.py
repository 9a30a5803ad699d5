"""Evidence `counted`: the one reading with the counted length.

Guarantees: ids are returned only where exactly one reading of the fields has as many tokens as the provider counted,
and nothing is left that the count could hide (`COUNT_CHECKS`). A re-split of the same length passes; the route's trait
`same_count_mismatch` says how often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.formats.format import Assembled, Format, Opener, Parts
from pipeline.proof.answer import Answer, Proof
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.locations import in_answer
from pipeline.proof.stream_deltas import MANY, crossed_boundary, may_hide_bytes, repeated_runs, without_repeats
from pipeline.proof.text_guards import require_limit, require_shown_thinking
from pipeline.records import Evidence, Reason, RefusedError, SpanKind


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read an answer, and its count."""

    parts: Parts
    assembled: Assembled
    count: int


def by_count(answer: Answer) -> Proof:
    """Return the one reading that closes the count.

    `require_text_evidence` must hold of the answer.
    """
    if answer.require(TraitName.COUNT_NATIVE) is not True:
        raise RefusedError(Reason.COUNT_NOT_NATIVE, "completion_tokens may be counted from the text", field="usage")
    total = answer.completion_tokens
    require_whole_last_character(answer)
    reading = only_closing(answer, readings_of(answer), total)
    for check in COUNT_CHECKS:
        check(answer, reading)
    return Proof(reading.assembled.ids, reading.assembled.spans, Evidence.COUNTED)


def require_whole_last_character(answer: Answer) -> None:
    """Refuse a cut stream that may hide half a character.

    A stream sends no sign of it. A body shows U+FFFD, which is refused before.
    """
    if answer.ended or not answer.completion.deltas:
        return
    last = answer.completion.deltas[-1].field
    if may_hide_bytes(answer.fmt.tokenizer, answer.reasoning if last == "reasoning" else answer.content):
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, "the cut may have hidden half a character", field=last)


# Readings


def readings_of(answer: Answer) -> list[Reading]:
    """Return every reading of the fields as text.

    The route's proven traits decide which there are; choosing among them is the count's work.
    """
    return [_reading(answer, parts) for body in _bodies(answer) for parts in _parts_with(answer, body)]


def _bodies(answer: Answer) -> Iterator[tuple[str | int, ...]]:
    """Yield the content as text, then with markers as ids."""
    if answer.completion.tool_calls:
        yield _structured_body(answer)
        return
    yield (answer.content,) if answer.content else ()
    marked = answer.fmt.split_markers(answer.content)
    if len(marked) > 1 or isinstance(marked[0], int):
        yield marked


def _structured_body(answer: Answer) -> tuple[str | int, ...]:
    """Return the section from which parsed calls were taken.

    RefusedError(STRUCTURED_CALLS) unless ids and arguments come verbatim, the section is whole, and no earlier calls
    may have renumbered the ids. RefusedError(FINISH_CONTRADICTS) where arguments were cut: the finish reason
    `tool_calls` hides a cut on some routes.
    """

    def refused(message: str) -> RefusedError:
        return RefusedError(Reason.STRUCTURED_CALLS, message, field="tool_calls")

    for name in (TraitName.TOOL_IDS, TraitName.TOOL_ARGUMENTS):
        if (value := answer.require(name)) != "verbatim":
            raise refused(f"{name} is {value} on this route")
    if not answer.ended:
        raise refused("a parser holds back what a cut section ended with")
    if any(message.get("tool_calls") for message in answer.prompt.messages):
        raise refused("earlier calls may have renumbered the ids")
    calls = answer.completion.tool_calls
    body = answer.fmt.structured_body(answer.content, calls)
    if body is None:
        raise refused(f"parsed calls of {answer.fmt.name} do not say how the model wrote them")
    for call in calls:
        if re.fullmatch(r"functions\." + re.escape(call.name) + r":\d+", call.id) is None:
            raise refused(f"id {call.id!r} is not functions.{call.name}:INDEX")
        if call.arguments and not _is_whole_object(call.arguments):
            message = f"arguments {call.arguments[-40:]!r} are no whole object"
            raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="tool_calls")
    return body


def _is_whole_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _parts_with(answer: Answer, body: tuple[str | int, ...]) -> Iterator[Parts]:
    """Yield the ways to have thought before this body."""
    opener, reasoning, ended = answer.opener, answer.reasoning, answer.ended
    if opener is Opener.NOBODY or (opener is Opener.MODEL and not reasoning):
        yield Parts(None, think_closed=False, body=body, ended=ended)
    if opener is not Opener.NOBODY:
        yield Parts(reasoning, think_closed=True, body=body, ended=ended)
        if not body and not ended:
            yield Parts(reasoning, think_closed=False, body=(), ended=False)


def _reading(answer: Answer, parts: Parts) -> Reading:
    """Return the reading as these parts.

    It has no ids where the layout cannot express parts with markers: then these were text.
    """
    try:
        assembled = answer.fmt.assemble(parts)
    except RefusedError as error:
        if not parts.has_markers or error.refusal.reason is not Reason.LAYOUT_INVALID:
            raise in_answer(error, answer.fmt, answer.completion) from None
        assembled = Assembled((), ())
    return Reading(parts, assembled, answer.count_of(parts, len(assembled.ids)))


def only_closing(answer: Answer, readings: Sequence[Reading], total: int) -> Reading:
    """Return the one reading that has the counted length."""
    closing = [reading for reading in readings if reading.count == total]
    if len(closing) == 1:
        return closing[0]
    if closing:
        marked = any(reading.parts.has_markers for reading in closing)
        reason = Reason.AMBIGUOUS_MARKER if marked else Reason.AMBIGUOUS_LAYOUT
        raise RefusedError(reason, f"{len(closing)} readings have {total} tokens", field="usage.completion_tokens")
    if not (answer.reasoning or answer.content or answer.completion.tool_calls):
        message = f"{total} tokens were counted and nothing was delivered"
        raise RefusedError(Reason.EMPTY_ANSWER, message, field="content")
    counts = ", ".join(str(reading.count) for reading in readings if reading.count >= 0)
    message = f"rebuilt {counts or 'nothing'} tokens, the provider counted {total}"
    raise RefusedError(Reason.COUNT_MISMATCH, message, field="usage.completion_tokens")


# What a count cannot see


def require_no_leaked_marker(answer: Answer, reading: Reading) -> None:
    """Refuse tool markers that the route should not show.

    It is not proven to send them raw, so they leaked.
    """
    body = reading.parts.body
    if answer.completion.tool_calls or answer.raw_markers or not reading.parts.has_markers:
        return
    at = _offset(answer.fmt, body, next(i for i, piece in enumerate(body) if isinstance(piece, int)))
    message = "the count closes only with tool markers as control tokens"
    raise RefusedError(Reason.LEAKED_CONTROL, message, field="content", char_offset=at)


def require_seen_thinking(answer: Answer, reading: Reading) -> None:  # noqa: ARG001 — the fields decide
    """Refuse an asked-for thinking that is not shown.

    A parser that failed shows it as content, where a count of the whole does not tell which part it was.
    """
    if answer.opener is not Opener.NOBODY and not answer.reasoning:
        message = "thinking was asked for and none is shown, so it may stand in the content"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="reasoning")


def require_seen_think_tokens(answer: Answer, reading: Reading) -> None:
    """Refuse a think token that only the count shows.

    It may stand elsewhere, or be another token that shows no text: half a character, a reserved id.
    """
    parts = reading.parts
    unseen_open = answer.opener is Opener.MODEL and (
        parts.reasoning == "" or (answer.fmt.is_headed and parts.reasoning is None)
    )
    if unseen_open or (parts.think_closed and not answer.shows_close):
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, "only the count tells of a <think> or </think>", field="content")


def require_shown_thinking_of(answer: Answer, reading: Reading) -> None:  # noqa: ARG001 — the fields decide
    """Refuse a thinking whose end neither count nor text shows."""
    require_shown_thinking(answer)


def require_limit_of(answer: Answer, reading: Reading) -> None:
    """Refuse a finish reason that the limit contradicts."""
    require_limit(answer, reading.parts)


def require_no_mixed_marker(answer: Answer, reading: Reading) -> None:
    """Refuse a marker that closes the count as text too.

    Each marker is tried alone.
    """
    fmt, body = answer.fmt, reading.parts.body
    for position, piece in enumerate(body):
        if isinstance(piece, int):
            spelled = _with_text_at(fmt, body, position)
            length = len(reading.assembled.ids) - _length(fmt, body) + _length(fmt, spelled)
            if answer.count_of(reading.parts, length) == answer.completion_tokens:
                message = f"the marker at piece {position} closes the count as text too"
                at = _offset(fmt, body, position)
                raise RefusedError(Reason.AMBIGUOUS_MARKER, message, field="content", char_offset=at)


def _offset(fmt: Format, body: Sequence[str | int], position: int) -> int:
    """Return the character at which a piece begins."""
    names = (piece if isinstance(piece, str) else fmt.tokenizer.name_of(piece) or "" for piece in body[:position])
    return sum(map(len, names))


def _with_text_at(fmt: Format, body: Sequence[str | int], position: int) -> tuple[str | int, ...]:
    """Return the body with one control token as text.

    It is joined to the text beside it.
    """
    name = fmt.tokenizer.name_of(int(body[position])) or ""
    before = body[position - 1] if position and isinstance(body[position - 1], str) else ""
    after = body[position + 1] if position + 1 < len(body) and isinstance(body[position + 1], str) else ""
    head = body[: position - 1] if before else body[:position]
    tail = body[position + 2 :] if after else body[position + 1 :]
    return (*head, f"{before}{name}{after}", *tail)


def _length(fmt: Format, body: Sequence[str | int]) -> int:
    return sum(1 if isinstance(piece, int) else len(fmt.tokenizer.encode(piece)) for piece in body)


def require_sent_once(answer: Answer, reading: Reading) -> None:  # noqa: ARG001 — other texts are read
    """Refuse a text that closes without a repeated delta."""
    if answer.completion.deltas is None:
        return
    with answer.fmt.tokenizer.remembering():
        for name in ("reasoning", "content"):
            shown = answer.delta_texts(name)
            if (runs := repeated_runs(shown)) > MANY:
                message = f"{runs} runs of equal deltas are too many to tell from duplicates"
                raise RefusedError(Reason.STREAM_INCONSISTENT, message, field=name)
            for other in without_repeats(shown):
                given = answer.completion
                shown_once = replace(given, reasoning=other) if name == "reasoning" else replace(given, content=other)
                shorter = replace(answer, completion=shown_once)
                if any(found.count == answer.completion_tokens for found in readings_of(shorter)):
                    message = f"the count closes without a delta of {name} that comes twice"
                    raise RefusedError(Reason.STREAM_INCONSISTENT, message, field=name)


def require_delta_boundaries(answer: Answer, reading: Reading) -> None:
    """Refuse a delta that ends inside a rebuilt token.

    Only on a route whose deltas are whole tokens or batches of them.
    """
    if answer.completion.deltas is None or answer.proven(TraitName.DELTAS) not in ("tokens", "batches"):
        return
    ids, spans = reading.assembled.ids, reading.assembled.spans
    for name, kinds in (("reasoning", {SpanKind.REASONING}), ("content", {SpanKind.CONTENT, SpanKind.TOOL_SECTION})):
        tokens = [token for span in spans if span.kind in kinds for token in ids[span.start : span.stop]]
        crossed = crossed_boundary(answer.fmt.tokenizer, tokens, answer.delta_texts(name))
        if crossed is not None:
            message = f"a delta of {name} ends at byte {crossed}, inside a rebuilt token"
            raise RefusedError(Reason.DELTAS_CONTRADICT, message, field=name)


COUNT_CHECKS: tuple[Callable[[Answer, Reading], None], ...] = (
    require_no_leaked_marker,
    require_seen_thinking,
    require_seen_think_tokens,
    require_shown_thinking_of,
    require_limit_of,
    require_no_mixed_marker,
    require_sent_once,
    require_delta_boundaries,
)
"""What a count cannot see of a reading; the first that fails decides the reason that a user sees.

What no proof from text can see is in `text_guards.TEXT_CHECKS`.
"""
