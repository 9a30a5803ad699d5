"""Kimi-K2.5's layout: prompts to ids, completions to ids and back.

Guarantees: control tokens are appended by id and text is encoded apart, segment by segment; `parse` and `assemble` are
each other's inverse on what the layout can express. Refuses everything else: images, control tokens where the layout
has none, ids that are not what the tokenizer makes of their own text.

A completion is `[reasoning </think>] content [tool section] [text] <|im_end|>`; with thinking on, the prompt has
already opened `<think>`. Source: Kimi-K2.5's chat template and Moonshot's tool-calling guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.formats.kimi_prompt import declare_tools, template_variables
from pipeline.formats.kimi_prompt import prompt_pieces as message_pieces
from pipeline.formats.kimi_tokens import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    END,
    SECTION_BEGIN,
    SECTION_END,
    THINK,
    THINK_CLOSE,
    TOOL_MARKERS,
    Piece,
    encode_pieces,
)
from pipeline.formats.parts import Assembled, Parts
from pipeline.formats.template import ChatTemplate, load_template
from pipeline.records import Ids, Json, JsonObject, Prompt, Reason, RefusedError, Span, SpanKind
from pipeline.tokenizers import RUN_CHARS, Tokenizer, prompt_pieces

__all__ = [
    "ARGUMENT_BEGIN",
    "CALL_BEGIN",
    "CALL_END",
    "END",
    "SECTION_BEGIN",
    "SECTION_END",
    "THINK",
    "THINK_CLOSE",
    "TOOL_MARKERS",
    "KimiFormat",
    "declare_tools",
    "load",
]

_NEXT: Final = {
    SECTION_BEGIN: {CALL_BEGIN, SECTION_END},
    CALL_BEGIN: {ARGUMENT_BEGIN},
    ARGUMENT_BEGIN: {CALL_END},
    CALL_END: {CALL_BEGIN, SECTION_END},
}
"""Which marker may follow which inside a section."""

_CONTROL_CHARS: Final = 40
"""No control token's name is longer, so a shorter prompt cannot reach the run that engines cut at."""

_TEXT_AFTER: Final = {CALL_BEGIN, ARGUMENT_BEGIN, SECTION_END}
"""Markers after which text may stand: a call's id, its arguments, and what follows the section."""


@dataclass(frozen=True, slots=True)
class KimiFormat:
    """Kimi-K2.5's layout on one tokenizer, and the model's own chat template where its directory holds one."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None = None

    @property
    def end_id(self) -> int:
        """The id that ends a completion."""
        return self.tokenizer.id_of(END)

    @property
    def think_close_id(self) -> int:
        """The id that ends the reasoning."""
        return self.tokenizer.id_of(THINK_CLOSE)

    def tool_markers(self) -> dict[str, int]:
        """The five tool markers' ids by name."""
        return {name: self.tokenizer.id_of(name) for name in TOOL_MARKERS}

    def render(self, prompt: Prompt, *, generation_prompt: bool = True) -> Ids:
        """Prompt ids as an engine serves them, shape [n]; RefusedError on what the layout cannot say."""
        pieces = list(message_pieces(prompt, self.tokenizer, generation_prompt=generation_prompt))
        ids = self._encode_prompt(prompt, pieces)
        if self.template is not None and generation_prompt and self.special_text(prompt) is None:
            self.template.require_equal(self.tokenizer, prompt, ids, template_variables(prompt))
        return ids

    def _encode_prompt(self, prompt: Prompt, pieces: Sequence[Piece]) -> Ids:
        if sum(len(piece) if isinstance(piece, str) else _CONTROL_CHARS for piece in pieces) > RUN_CHARS:
            return self._render_long(prompt, pieces)
        return tuple(encode_pieces(self.tokenizer, pieces))

    def _render_long(self, prompt: Prompt, pieces: Sequence[Piece]) -> Ids:
        """A prompt that the engine's own encode might cut: exactly as it cuts, or refused."""
        name_of = self.tokenizer.name_of
        text = "".join(piece if isinstance(piece, str) else str(name_of(piece)) for piece in pieces)
        if next(prompt_pieces(text)) == text:
            return tuple(encode_pieces(self.tokenizer, pieces))
        if (found := self.special_text(prompt)) is not None:
            message = f"a prompt of {len(text)} characters is cut by the engine and spells {found}"
            raise RefusedError(Reason.SPECIAL_TEXT, message)
        return tuple(self.tokenizer.encode_prompt(text))

    def special_text(self, prompt: Prompt) -> str | None:
        """The first control token that the prompt's own text spells, if any."""
        if not prompt.tools and all(_is_innocent(value) for message in prompt.messages for value in message.values()):
            return None
        for piece in message_pieces(prompt, self.tokenizer):
            if isinstance(piece, str) and (found := self.tokenizer.find_control(piece)) is not None:
                return found[1]
        return None

    def declare_tools(self, tools: Sequence[JsonObject]) -> str:
        """The text that declares `tools` in a first message of the role `tool_declare`."""
        return declare_tools(tools)

    def assemble(self, parts: Parts) -> Assembled:
        """Ids and spans of a completion; RefusedError(LAYOUT_INVALID) if `parts` is not one the layout can express."""
        _check_parts(parts, self.tokenizer)
        return assemble_unchecked(self, parts)

    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]:
        """What each stretch of emitted ids is, canonical or not; RefusedError(LAYOUT_INVALID) outside the layout."""
        return tuple(_spans(ids, thinking, self.tokenizer))

    def parts(self, ids: Ids, *, thinking: bool) -> Parts:
        """The text of emitted ids, canonical or not; RefusedError if it is outside the layout or no UTF-8."""
        spans = {span.kind: ids[span.start : span.stop] for span in self.layout(ids, thinking=thinking)}
        body = ids[len(spans.get(SpanKind.REASONING, ())) + len(spans.get(SpanKind.THINK_CLOSE, ())) :]
        ended = SpanKind.END in spans
        return Parts(
            reasoning=self.tokenizer.decode_text(spans.get(SpanKind.REASONING, ())) if thinking else None,
            think_closed=SpanKind.THINK_CLOSE in spans,
            body=tuple(_body_pieces(body[:-1] if ended else body, self.tokenizer)),
            ended=ended,
        )

    def parse(self, ids: Ids, *, thinking: bool) -> Parts:
        """The inverse of `assemble`: RefusedError(NOT_CANONICAL) where `assemble` would not give `ids` back."""
        parts = self.parts(ids, thinking=thinking)
        again = self.assemble(parts).ids
        if again != ids:
            at = next(
                (i for i, (a, b) in enumerate(zip(ids, again, strict=False)) if a != b), min(len(ids), len(again))
            )
            raise RefusedError(
                Reason.NOT_CANONICAL, f"ids differ from their canonical form at token {at}", token_position=at
            )
        return parts


def _is_innocent(value: Json) -> bool:
    """Whether the value is text without the two characters that control tokens begin with: the common case, fast."""
    return isinstance(value, str) and "<" not in value and "[" not in value


def load(name: str, tokenizer: Tokenizer) -> KimiFormat:
    """Kimi-K2.5's layout on `tokenizer`, called `name`."""
    return KimiFormat(name, tokenizer, load_template(tokenizer.directory))


def assemble_unchecked(fmt: KimiFormat, parts: Parts) -> Assembled:
    """Ids and spans of parts that are known to lie in the layout."""
    ids: list[int] = []
    spans: list[Span] = []
    for kind, pieces in _groups(fmt, parts):
        start = len(ids)
        ids.extend(encode_pieces(fmt.tokenizer, pieces))
        if len(ids) > start:
            spans.append(Span(kind, start, len(ids)))
    return Assembled(tuple(ids), tuple(spans))


def _groups(fmt: KimiFormat, parts: Parts) -> Iterator[tuple[SpanKind, Sequence[Piece]]]:
    if parts.reasoning is not None:
        yield SpanKind.REASONING, (parts.reasoning,)
        if parts.think_closed:
            yield SpanKind.THINK_CLOSE, (fmt.think_close_id,)
    begin, stop = _section_bounds(parts.body, fmt.tokenizer)
    yield SpanKind.CONTENT, parts.body[:begin]
    yield SpanKind.TOOL_SECTION, parts.body[begin:stop]
    yield SpanKind.CONTENT, parts.body[stop:]
    if parts.ended:
        yield SpanKind.END, (fmt.end_id,)


def _section_bounds(body: Sequence[Piece], tokenizer: Tokenizer) -> tuple[int, int]:
    begin_id, end_id = tokenizer.id_of(SECTION_BEGIN), tokenizer.id_of(SECTION_END)
    begin = next((i for i, piece in enumerate(body) if piece == begin_id), len(body))
    return begin, next((i + 1 for i, piece in enumerate(body) if piece == end_id), len(body))


def _invalid(message: str, position: int | None = None) -> RefusedError:
    return RefusedError(Reason.LAYOUT_INVALID, message, token_position=position)


def _check_parts(parts: Parts, tokenizer: Tokenizer) -> None:
    if parts.reasoning is None and parts.think_closed:
        raise _invalid("an instant answer cannot close a thinking that the prompt has closed")
    open_thinking = parts.reasoning is not None and not parts.think_closed
    if open_thinking and (parts.body or parts.ended):
        raise _invalid("content or an end token stands before </think>")
    _check_body(parts.body, parts.ended, tokenizer)


def _check_body(body: Sequence[Piece], ended: bool, tokenizer: Tokenizer) -> None:  # noqa: FBT001
    """The grammar of a body: text, at most one section of whole calls, text; cut anywhere if not ended."""
    last: str | None = None
    was_text = False
    for position, piece in enumerate(body):
        if isinstance(piece, str):
            if not piece or was_text or not (last is None or last in _TEXT_AFTER):
                raise _invalid(f"text {piece[:40]!r} cannot stand at piece {position} (after {last})")
            was_text = True
            continue
        name = tokenizer.name_of(piece)
        if name not in (_NEXT.get(last, set()) if last else {SECTION_BEGIN}):
            raise _invalid(f"{name or piece} cannot stand at piece {position} (after {last})", position)
        last, was_text = name, False
    if ended and last not in {None, SECTION_END}:
        raise _invalid(f"the answer ends inside a tool section (after {last})")


def _spans(ids: Ids, thinking: bool, tokenizer: Tokenizer) -> Iterator[Span]:  # noqa: FBT001
    close = tokenizer.id_of(THINK_CLOSE)
    start = 0
    if thinking:
        stop = ids.index(close) if close in ids else len(ids)
        _require_base(ids, 0, stop, tokenizer)
        yield from _span(SpanKind.REASONING, 0, stop)
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


def _require_base(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> None:
    for position in range(start, stop):
        token = ids[position]
        if not 0 <= token < tokenizer.base_size:
            raise _invalid(f"{tokenizer.name_of(token) or token} stands inside the reasoning", position)


def _body_spans(ids: Ids, start: int, stop: int, ended: bool, tokenizer: Tokenizer) -> Iterator[Span]:  # noqa: FBT001
    pieces = _skeleton(ids[start:stop], tokenizer)
    _check_body(pieces, ended, tokenizer)
    begin_id, end_id = tokenizer.id_of(SECTION_BEGIN), tokenizer.id_of(SECTION_END)
    begin = ids.index(begin_id, start, stop) if begin_id in pieces else stop
    end = ids.index(end_id, start, stop) + 1 if end_id in pieces else stop
    yield from _span(SpanKind.CONTENT, start, begin)
    yield from _span(SpanKind.TOOL_SECTION, begin, end)
    yield from _span(SpanKind.CONTENT, end, stop)


def _skeleton(ids: Ids, tokenizer: Tokenizer) -> list[Piece]:
    """The body with every run of base tokens as one placeholder text."""
    pieces: list[Piece] = []
    for token in ids:
        if not 0 <= token < tokenizer.base_size:
            pieces.append(token)
        elif not pieces or isinstance(pieces[-1], int):
            pieces.append("…")
    return pieces


def _body_pieces(ids: Ids, tokenizer: Tokenizer) -> Iterator[Piece]:
    start = 0
    for position, token in enumerate(ids):
        if token >= tokenizer.base_size:
            if position > start:
                yield tokenizer.decode_text(ids[start:position])
            yield token
            start = position + 1
    if start < len(ids):
        yield tokenizer.decode_text(ids[start:])
