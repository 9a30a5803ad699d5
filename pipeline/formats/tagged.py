"""Formats with thinking and tool calls between control tokens.

Guarantees: control tokens are appended by id and text is encoded apart; `parse` and `assemble` are each other's inverse
on what the family's grammar can express, and everything else is refused. A family is a `Dialect`: its grammar, its
prompts, and who opens the thinking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from pipeline.formats.chat_template import ChatTemplate
from pipeline.formats.emitted_calls import EmittedCall
from pipeline.formats.format import Assembled, Format, Opener, Parts
from pipeline.formats.pieces import Piece, encode_pieces
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids, Json, JsonObject, Prompt, Reason, RefusedError, Span, SpanKind


@dataclass(frozen=True, slots=True)
class Grammar:
    """Control tokens by name, and the order of tool markers.

    `after` says which marker may follow which; None is the beginning of the body. Text may stand after the markers in
    `text_after` and at the beginning; an answer may end after those in `closers`. Where the next role's marker ends a
    turn, calls are ended by another one, `end_after_calls`. `think_lead` is text that the model writes before the
    `think` that it emits. Where there is one marker, and the rest of each tag is text, `tags` names them (`<MARKERname`
    and `</MARKERname`), and a section runs on to the end of the answer.
    """

    end: str
    think: str
    think_close: str
    after: Mapping[str | None, frozenset[str]]
    text_after: frozenset[str]
    closers: frozenset[str]
    end_after_calls: str | None = None
    think_lead: str = ""
    tags: frozenset[str] = frozenset()

    @property
    def markers(self) -> tuple[str, ...]:
        """The tool markers' names."""
        return tuple(name for name in self.after if name is not None)


def no_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:  # noqa: ARG001 — of a family
    """Yield nothing: the family calls no tools."""
    yield from ()


def no_ambiguity(prompt: Prompt) -> str | None:  # noqa: ARG001 — of most families
    """Return None: engines write every prompt of a family alike."""
    return None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One family: its grammar, its prompts, its openers.

    `pieces` yields a prompt as text and control ids. `template_inputs` gives the prompt and the variables for the
    model's own template. `thinking` and `instant` say who opens the thinking in either mode. `calls` yields
    the calls that parsers find in a tool section. `ambiguity` says what of a prompt engines write in several ways of
    one length.
    """

    grammar: Grammar
    pieces: Callable[[Prompt, Tokenizer], Iterator[Piece]]
    template_inputs: Callable[[Prompt], tuple[Prompt, Mapping[str, Json]]]
    thinking: Opener
    instant: Opener
    calls: Callable[[Sequence[Piece], Tokenizer], Iterator[EmittedCall]] = no_calls
    ambiguity: Callable[[Prompt], str | None] = no_ambiguity


@dataclass(frozen=True, slots=True)
class TaggedFormat(Format):
    """A dialect on one tokenizer.

    `template` is the model's own chat template, where its directory holds one.
    """

    name: str
    tokenizer: Tokenizer
    dialect: Dialect
    template: ChatTemplate | None = None

    @property
    def end_id(self) -> int:
        return self.tokenizer.id_of(self.dialect.grammar.end)

    @property
    def end_after_calls_id(self) -> int:
        return self.tokenizer.id_of(self.dialect.grammar.end_after_calls or self.dialect.grammar.end)

    @property
    def think_lead_ids(self) -> Ids:
        return tuple(encode_pieces(self.tokenizer, (self.dialect.grammar.think_lead,)))

    @property
    def think_open_id(self) -> int:
        return self.tokenizer.id_of(self.dialect.grammar.think)

    @property
    def think_close_id(self) -> int:
        return self.tokenizer.id_of(self.dialect.grammar.think_close)

    @property
    def tag_names(self) -> frozenset[str]:
        return self.dialect.grammar.tags

    def ambiguity(self, prompt: Prompt) -> str | None:
        return self.dialect.ambiguity(prompt)

    def opener(self, *, thinking: bool) -> Opener:
        return self.dialect.thinking if thinking else self.dialect.instant

    def tool_markers(self) -> dict[str, int]:
        return {name: self.tokenizer.id_of(name) for name in self.dialect.grammar.markers}

    def render(self, prompt: Prompt) -> Ids:
        ids = tuple(encode_pieces(self.tokenizer, self._pieces(prompt)))
        if self.template is not None and self.special_text(prompt) is None:
            given, variables = self.dialect.template_inputs(prompt)
            self.template.require_equal(self.tokenizer, given, ids, variables)
        return ids

    def _pieces(self, prompt: Prompt) -> Iterator[Piece]:
        """Yield control ids, and text between them as one piece.

        Engines encode it so.
        """
        for is_text, run in groupby(self.dialect.pieces(prompt, self.tokenizer), lambda piece: isinstance(piece, str)):
            if is_text:
                yield "".join(map(str, run))
            else:
                yield from run

    def special_text(self, prompt: Prompt) -> str | None:
        found = (self.tokenizer.find_control(piece) for piece in self._pieces(prompt) if isinstance(piece, str))
        return next((control[1] for control in found if control is not None), None)

    def declare_tools(self, tools: Sequence[JsonObject]) -> str:
        """Refuse: the declaration spells markers.

        Engines read them as control tokens in a message too.
        """
        message = (
            f"{self.name} declares {len(tools)} tools with markers in the text, so they cannot travel in a message"
        )
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field="tools")

    def assemble(self, parts: Parts) -> Assembled:
        _check_parts(parts, self.dialect)
        _check_body(parts.body, self, ended=parts.ended)
        ids: list[int] = []
        spans: list[Span] = []
        for kind, pieces in self._groups(parts):
            start = len(ids)
            ids.extend(encode_pieces(self.tokenizer, pieces))
            if len(ids) > start:
                spans.append(Span(kind, start, len(ids)))
        return Assembled(tuple(ids), tuple(spans))

    def _groups(self, parts: Parts) -> Iterator[tuple[SpanKind, Sequence[Piece]]]:
        if parts.reasoning is not None:
            if self.dialect.thinking is Opener.MODEL:
                yield SpanKind.THINK_OPEN, self.opening_ids
            yield SpanKind.REASONING, (parts.reasoning,)
            if parts.think_closed:
                yield SpanKind.THINK_CLOSE, (self.think_close_id,)
        begin, stop = _section(parts.body, self)
        yield SpanKind.CONTENT, parts.body[:begin]
        yield SpanKind.TOOL_SECTION, parts.body[begin:stop]
        yield SpanKind.CONTENT, parts.body[stop:]
        if parts.ended:
            yield SpanKind.END, (self.end_id_for(parts.body),)

    def calls_in(self, ids: Ids) -> list[EmittedCall]:
        markers = self.tool_markers().values()
        first = next((position for position, token in enumerate(ids) if token in markers), len(ids))
        pieces: list[Piece] = []
        for is_marker, run in groupby(ids[first:], lambda token: token in markers):
            tokens = tuple(run)
            pieces += tokens if is_marker else (self.tokenizer.decode_bytes(tokens).decode("utf-8", errors="replace"),)
        return list(self.dialect.calls(pieces, self.tokenizer))

    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]:
        return tuple(_spans(ids, self, thinking=thinking))

    def parts(self, ids: Ids, *, thinking: bool) -> Parts:
        spans = self.layout(ids, thinking=thinking)
        kinds = {span.kind: span for span in spans}
        thought = self.opener(thinking=thinking) is Opener.PROMPT or SpanKind.THINK_OPEN in kinds
        reasoning = kinds.get(SpanKind.REASONING)
        body = [span for span in spans if span.kind in (SpanKind.CONTENT, SpanKind.TOOL_SECTION)]
        return Parts(
            reasoning=(_text(ids, reasoning.start, reasoning.stop, self) if reasoning else "") if thought else None,
            think_closed=SpanKind.THINK_CLOSE in kinds,
            body=tuple(_body_pieces(ids, body[0].start, body[-1].stop, self)) if body else (),
            ended=SpanKind.END in kinds,
        )


def _invalid(message: str, position: int | None = None, field: str | None = None) -> RefusedError:
    return RefusedError(Reason.LAYOUT_INVALID, message, token_position=position, field=field)


def _check_parts(parts: Parts, dialect: Dialect) -> None:
    if parts.reasoning is not None and dialect.thinking is Opener.NOBODY:
        raise _invalid("this family does not think, so an answer has no reasoning", field="reasoning")
    if parts.reasoning is None and dialect.instant is Opener.PROMPT:
        raise _invalid("this family always thinks, and its prompt opens the thinking", field="reasoning")
    if parts.reasoning is None and parts.think_closed:
        raise _invalid("an answer that did not think cannot close its thinking", field="content")
    if parts.reasoning is not None and not parts.think_closed and (parts.body or parts.ended):
        raise _invalid("content or an end token stands before the end of the thinking", field="content")


def _check_body(body: Sequence[Piece], fmt: TaggedFormat, *, ended: bool, starts: Sequence[int] | None = None) -> None:
    """Refuse a body outside the grammar.

    It may be cut anywhere if it did not end. `starts` are the token positions of its pieces and of the end, where it is
    of emitted ids.
    """
    grammar = fmt.dialect.grammar
    last: str | None = None
    was_text = False
    for position, piece in enumerate(body):
        name = None if isinstance(piece, str) else fmt.tokenizer.name_of(piece)
        if isinstance(piece, str):
            allowed = bool(piece) and not was_text and (last is None or last in grammar.text_after)
        else:
            allowed = name in grammar.after.get(last, frozenset())
        if not allowed:
            what = f"text {piece[:40]!r}" if isinstance(piece, str) else name or str(piece)
            raise _misplaced(what, position, last, starts)
        was_text, last = isinstance(piece, str), last if isinstance(piece, str) else name
    if ended and last is not None and last not in grammar.closers:
        raise _misplaced("the end token", len(body), last, starts)
    if grammar.tags:
        _check_tags(body, fmt, ended=ended, starts=starts)


def _check_tags(body: Sequence[Piece], fmt: TaggedFormat, *, ended: bool, starts: Sequence[int] | None) -> None:
    """Refuse a marker that stands in no tag.

    The last tag may be cut. Otherwise a marker could hide in any text that lacks it.
    """
    names = tuple(fmt.dialect.grammar.tags)
    for position, piece in enumerate(body):
        if isinstance(piece, str):
            continue
        before, after = (_text_at(body, beside) for beside in (position - 1, position + 1))
        cut = not ended and position + 2 >= len(body) and any(name.startswith(after) for name in names)
        if not before.endswith(("<", "</")) or not (cut or after.startswith(names)):
            raise _misplaced(fmt.tokenizer.name_of(piece) or str(piece), position, "text that makes it no tag", starts)


def _text_at(body: Sequence[Piece], position: int) -> str:
    piece = body[position] if 0 <= position < len(body) else ""
    return piece if isinstance(piece, str) else ""


def _misplaced(what: str, position: int, last: str | None, starts: Sequence[int] | None) -> RefusedError:
    message = f"{what} cannot stand at piece {position} of the body (after {last})"
    return _invalid(message, field="content") if starts is None else _invalid(message, starts[position])


def _section(body: Sequence[Piece], fmt: TaggedFormat) -> tuple[int, int]:
    """Return where the body's tool section begins and ends.

    From the first marker to the last one that closes, or to the end where the last call is open.
    """
    marked = [position for position, piece in enumerate(body) if isinstance(piece, int)]
    if not marked:
        return len(body), len(body)
    last = fmt.tokenizer.name_of(int(body[marked[-1]]))
    closed = last in fmt.dialect.grammar.closers and not fmt.dialect.grammar.tags
    return marked[0], marked[-1] + 1 if closed else len(body)


def _spans(ids: Ids, fmt: TaggedFormat, *, thinking: bool) -> Iterator[Span]:
    begun = len(fmt.opened_with(ids, thinking=thinking))
    yield from _span(SpanKind.THINK_OPEN, 0, begun)
    start = 0
    if begun or fmt.opener(thinking=thinking) is Opener.PROMPT:
        stop = ids.index(fmt.think_close_id) if fmt.think_close_id in ids else len(ids)
        _require_base(ids, begun, stop, fmt)
        yield from _span(SpanKind.REASONING, begun, stop)
        yield from _span(SpanKind.THINK_CLOSE, stop, min(stop + 1, len(ids)))
        start = min(stop + 1, len(ids))
    ended = len(ids) > start and ids[-1] in fmt.end_ids
    stop = len(ids) - 1 if ended else len(ids)
    yield from _body_spans(ids, start, stop, fmt, ended=ended)
    if ended:
        called = [token for token in ids[start:-1] if fmt.tokenizer.is_control(token)]
        if ids[-1] != fmt.end_id_for(called):
            name = fmt.tokenizer.name_of(ids[-1])
            raise _invalid(f"{name} does not end an answer {'with' if called else 'without'} tool calls", len(ids) - 1)
        yield Span(SpanKind.END, stop, len(ids))


def _span(kind: SpanKind, start: int, stop: int) -> Iterator[Span]:
    if stop > start:
        yield Span(kind, start, stop)


def _require_base(ids: Ids, start: int, stop: int, fmt: TaggedFormat) -> None:
    for position in range(start, stop):
        if not _is_base(ids[position], fmt):
            name = fmt.tokenizer.name_of(ids[position]) or ids[position]
            raise _invalid(f"{name} stands inside the reasoning", position)


def _is_base(token: int, fmt: TaggedFormat) -> bool:
    return 0 <= token < fmt.tokenizer.size and not fmt.tokenizer.is_control(token)


def _body_spans(ids: Ids, start: int, stop: int, fmt: TaggedFormat, *, ended: bool) -> Iterator[Span]:
    pieces, starts = _skeleton(ids, start, stop, fmt)
    _check_body(pieces, fmt, ended=ended, starts=starts)
    begin, end = (starts[position] for position in _section(pieces, fmt))
    yield from _span(SpanKind.CONTENT, start, begin)
    yield from _span(SpanKind.TOOL_SECTION, begin, end)
    yield from _span(SpanKind.CONTENT, end, stop)


def _skeleton(ids: Ids, start: int, stop: int, fmt: TaggedFormat) -> tuple[list[Piece], list[int]]:
    """Return the body with placeholders for text.

    Every run of base tokens is one placeholder, or its text where the grammar looks at it. Also returns where each
    piece and the end stand.
    """
    pieces: list[Piece] = []
    starts: list[int] = []
    for position in range(start, stop):
        base = _is_base(ids[position], fmt)
        if not base or not pieces or isinstance(pieces[-1], int):
            pieces.append("…" if base else ids[position])
            starts.append(position)
    starts.append(stop)
    if fmt.dialect.grammar.tags:
        decode = fmt.tokenizer.decode_bytes
        said = [decode(ids[a:b]).decode("utf-8", errors="replace") for a, b in pairwise(starts)]
        pieces = [text if isinstance(piece, str) else piece for piece, text in zip(pieces, said, strict=True)]
    return pieces, starts


def _body_pieces(ids: Ids, start: int, stop: int, fmt: TaggedFormat) -> Iterator[Piece]:
    pieces, starts = _skeleton(ids, start, stop, fmt)
    for position, piece in enumerate(pieces):
        yield piece if isinstance(piece, int) else _text(ids, starts[position], starts[position + 1], fmt)


def _text(ids: Ids, start: int, stop: int, fmt: TaggedFormat) -> str:
    """Return the text of `ids[start:stop]`.

    A refusal counts tokens from the start of `ids`.
    """
    try:
        return fmt.tokenizer.decode_text(ids[start:stop])
    except RefusedError as error:
        raise error.after(start) from None
