"""The grammar of Kimi's completions.

Guarantees: `spans_of` and `assembled` know the same grammar, one on emitted ids, canonical or not, the other on text
and control ids. A refusal says at which token, or in which field, the grammar ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.formats.format import Assembled, Opener, Parts
from pipeline.formats.kimi.tokens import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    END,
    SECTION_BEGIN,
    SECTION_END,
    THINK,
    THINK_CLOSE,
)
from pipeline.formats.pieces import Piece, append_pieces
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids, Reason, RefusedError, Span, SpanKind

_NEXT: Final = {
    SECTION_BEGIN: {CALL_BEGIN, SECTION_END},
    CALL_BEGIN: {ARGUMENT_BEGIN},
    ARGUMENT_BEGIN: {CALL_END},
    CALL_END: {CALL_BEGIN, SECTION_END},
}
"""Which marker may follow which inside a section."""

_TEXT_AFTER: Final = {CALL_BEGIN, ARGUMENT_BEGIN, SECTION_END}
"""Markers after which text may stand: a call's id, its arguments, and what follows the section."""


def assembled(parts: Parts, opener: Opener, tokenizer: Tokenizer) -> Assembled:
    """Return ids and spans of `parts`.

    `opener` is the release's. RefusedError(LAYOUT_INVALID) outside the grammar.
    """
    _check_parts(parts, opener)
    _check_body(parts.body, parts.ended, tokenizer)
    ids: list[int] = []
    spans: list[Span] = []
    for kind, pieces in _groups(parts, opener, tokenizer):
        if pieces:
            start = len(ids)
            append_pieces(ids, tokenizer, pieces)
            if len(ids) > start:
                spans.append(Span(kind, start, len(ids)))
    return Assembled(tuple(ids), tuple(spans))


def _groups(parts: Parts, opener: Opener, tokenizer: Tokenizer) -> Iterator[tuple[SpanKind, Sequence[Piece]]]:
    if parts.reasoning is not None:
        if opener is Opener.MODEL:
            yield SpanKind.THINK_OPEN, (tokenizer.id_of(THINK),)
        yield SpanKind.REASONING, (parts.reasoning,)
        if parts.think_closed:
            yield SpanKind.THINK_CLOSE, (tokenizer.id_of(THINK_CLOSE),)
    body, begin, end = parts.body, tokenizer.id_of(SECTION_BEGIN), tokenizer.id_of(SECTION_END)
    start = body.index(begin) if begin in body else len(body)
    stop = body.index(end) + 1 if end in body else len(body)
    yield SpanKind.CONTENT, body[:start]
    yield SpanKind.TOOL_SECTION, body[start:stop]
    yield SpanKind.CONTENT, body[stop:]
    if parts.ended:
        yield SpanKind.END, (tokenizer.id_of(END),)


def _check_parts(parts: Parts, opener: Opener) -> None:
    if parts.reasoning is not None and opener is Opener.NOBODY:
        raise _invalid("this release does not think, so an answer has no reasoning", field="reasoning")
    if parts.reasoning is None and parts.think_closed:
        raise _invalid("an instant answer cannot close a thinking that the prompt has closed", field="content")
    open_thinking = parts.reasoning is not None and not parts.think_closed
    if open_thinking and (parts.body or parts.ended):
        raise _invalid("content or an end token stands before </think>", field="content")


def _check_body(
    body: Sequence[Piece],
    ended: bool,  # noqa: FBT001 — as in `Parts`
    tokenizer: Tokenizer,
    starts: Sequence[int] | None = None,
) -> None:
    """Refuse a body outside the grammar.

    The grammar is text, at most one section of whole calls, text; cut anywhere if not ended. `starts` are the token
    positions of the pieces and of the end, where the body is of emitted ids.
    """
    last: str | None = None
    was_text = False
    for position, piece in enumerate(body):
        if isinstance(piece, str):
            if not piece or was_text or not (last is None or last in _TEXT_AFTER):
                raise _misplaced(f"text {piece[:40]!r}", position, last, starts)
            was_text = True
            continue
        name = tokenizer.name_of(piece)
        if name not in (_NEXT.get(last, set()) if last else {SECTION_BEGIN}):
            raise _misplaced(name or str(piece), position, last, starts)
        last, was_text = name, False
    if ended and last not in {None, SECTION_END}:
        raise _misplaced("the end token", len(body), last, starts)


def _misplaced(what: str, position: int, last: str | None, starts: Sequence[int] | None) -> RefusedError:
    message = f"{what} cannot stand at piece {position} of the body (after {last})"
    if starts is None:
        return _invalid(message, field="content")
    return _invalid(message, starts[position])


def _invalid(message: str, position: int | None = None, *, field: str | None = None) -> RefusedError:
    return RefusedError(Reason.LAYOUT_INVALID, message, token_position=position, field=field)


def spans_of(ids: Ids, opener: Opener, tokenizer: Tokenizer) -> Iterator[Span]:
    """Yield what each stretch of emitted ids is.

    RefusedError(LAYOUT_INVALID) outside the grammar.
    """
    opened = 1 if opener is Opener.MODEL and ids[:1] == (tokenizer.id_of(THINK),) else 0
    yield from _span(SpanKind.THINK_OPEN, 0, opened)
    start = 0
    if opened or opener is Opener.PROMPT:
        close = tokenizer.id_of(THINK_CLOSE)
        stop = ids.index(close) if close in ids else len(ids)
        _require_base(ids, opened, stop, tokenizer)
        yield from _span(SpanKind.REASONING, opened, stop)
        yield from _span(SpanKind.THINK_CLOSE, stop, min(stop + 1, len(ids)))
        start = stop + 1
    ended = bool(ids) and ids[-1] == tokenizer.id_of(END)
    stop = len(ids) - 1 if ended else len(ids)
    yield from _body_spans(ids, start, stop, ended, tokenizer)
    if ended:
        yield Span(SpanKind.END, stop, len(ids))


def _span(kind: SpanKind, start: int, stop: int) -> Iterator[Span]:
    if stop > start:
        yield Span(kind, start, stop)


def _are_base(ids: Ids, tokenizer: Tokenizer) -> bool:
    return not ids or 0 <= min(ids) <= max(ids) < tokenizer.base_size


def _require_base(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> None:
    if _are_base(ids[start:stop], tokenizer):
        return
    for position in range(start, stop):
        token = ids[position]
        if not 0 <= token < tokenizer.base_size:
            raise _invalid(f"{tokenizer.name_of(token) or token} stands inside the reasoning", position)


def _body_spans(ids: Ids, start: int, stop: int, ended: bool, tokenizer: Tokenizer) -> Iterator[Span]:  # noqa: FBT001
    pieces, starts = _skeleton(ids, start, stop, tokenizer)
    _check_body(pieces, ended, tokenizer, starts)
    begin_id, end_id = tokenizer.id_of(SECTION_BEGIN), tokenizer.id_of(SECTION_END)
    begin = ids.index(begin_id, start, stop) if begin_id in pieces else stop
    end = ids.index(end_id, start, stop) + 1 if end_id in pieces else stop
    yield from _span(SpanKind.CONTENT, start, begin)
    yield from _span(SpanKind.TOOL_SECTION, begin, end)
    yield from _span(SpanKind.CONTENT, end, stop)


def _skeleton(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> tuple[list[Piece], list[int]]:
    """Return the body with placeholders for text.

    Every run of base tokens is one placeholder. Also returns where each piece and the end stand.
    """
    if _are_base(ids[start:stop], tokenizer):
        return (["…"], [start, stop]) if stop > start else ([], [stop])
    pieces: list[Piece] = []
    starts: list[int] = []
    for position in range(start, stop):
        token = ids[position]
        if not 0 <= token < tokenizer.base_size:
            pieces.append(token)
            starts.append(position)
        elif not pieces or isinstance(pieces[-1], int):
            pieces.append("…")
            starts.append(position)
    return pieces, [*starts, stop]


def pieces_of(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield `ids[start:stop]` as text and control ids.

    Refused where a text is not UTF-8.
    """
    run = start
    for position in range(start, stop):
        if ids[position] >= tokenizer.base_size:
            if position > run:
                yield text_of(ids, run, position, tokenizer)
            yield ids[position]
            run = position + 1
    if run < stop:
        yield text_of(ids, run, stop, tokenizer)


def text_of(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> str:
    """Return the text of `ids[start:stop]`.

    A refusal counts tokens from the start of `ids`.
    """
    try:
        return tokenizer.decode_text(ids[start:stop])
    except RefusedError as error:
        raise error.after(start) from None
