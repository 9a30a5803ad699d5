"""gpt-oss's layout, harmony: messages on channels, behind headers.

Guarantees: control tokens are appended by id, headers and texts are encoded apart, and `parse` and `assemble` are each
other's inverse. From text alone one form is rebuilt: an analysis message, then the final one, ended by `<|return|>` or
cut. All that text cannot show (no analysis or an empty one, a preamble, several messages, calls and how their headers
were written) is refused unless ids came.

A prompt says the day on which it was rendered and how hard to think. No request asks for that day and no count shows
it, so both are taken from returned prompt ids, or from what the route is proven to say; otherwise the row is refused.
What is rendered here, to be run or measured, says `DAY`.

Sources: openai-harmony 0.0.8, and the chat template of openai/gpt-oss-20b.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar, Final

from pipeline.formats.emitted_calls import EmittedCall
from pipeline.formats.format import Assembled, HeadedFormat, Opener, Parts
from pipeline.formats.harmony.grammar import Message, messages_of, spans_of
from pipeline.formats.harmony.prompt import ambiguity, prompt_pieces
from pipeline.formats.harmony.tokens import ANALYSIS, FINAL, Marks, marks_of
from pipeline.formats.pieces import Piece, encode_pieces
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids, Json, JsonObject, Prompt, Reason, RefusedError, Span, SpanKind

DAY: Final = "2025-08-05"
"""The day that our own renderings say: that of the model's release."""
EFFORTS: Final = ("low", "medium", "high")
_DAY = re.compile(r"\nCurrent date: (\d{4}-\d\d-\d\d)\n")


@dataclass(frozen=True, slots=True)
class HarmonyFormat(HeadedFormat):
    """Harmony on one tokenizer, for one effort and day."""

    name: str
    tokenizer: Tokenizer
    marks: Marks
    effort: str = "medium"
    day: str = DAY
    is_dated: ClassVar[bool] = True

    @property
    def end_id(self) -> int:
        return self.marks.returned

    @property
    def end_after_calls_id(self) -> int:
        return self.marks.call

    @property
    def think_lead_ids(self) -> Ids:
        return self.marks.thinks[:-1]

    @property
    def think_open_id(self) -> int:
        return self.marks.message

    @property
    def think_close_id(self) -> int:
        return self.marks.end

    @property
    def think_tail_ids(self) -> Ids:
        return self.marks.turns[1:]

    @property
    def template_switches(self) -> JsonObject:
        return {} if self.effort == "medium" else {"reasoning_effort": self.effort}

    def opener(self, *, thinking: bool) -> Opener:  # noqa: ARG002 — this family knows no other mode
        return Opener.MODEL

    def tool_markers(self) -> dict[str, int]:
        """Return none: a call is a message.

        No text shows how its header was written.
        """
        return {}

    def as_served(self, prompt_ids: Ids) -> HarmonyFormat:
        """Return the format with the served prompt's day.

        RefusedError(PROMPT_MISMATCH) where it says none.
        """
        stop = prompt_ids.index(self.marks.end) if self.marks.end in prompt_ids else 0
        said = self.tokenizer.decode_bytes(prompt_ids[:stop]).decode("utf-8", errors="replace")
        found = _DAY.search(said)
        if found is None:
            message = "the served prompt does not begin with a system message that says the day"
            raise RefusedError(Reason.PROMPT_MISMATCH, message, field="prompt_token_ids")
        return replace(self, day=found[1])

    def ambiguity(self, prompt: Prompt) -> str | None:
        return ambiguity(prompt, self.tokenizer)

    def as_settled(self, settings: Json) -> HarmonyFormat:
        """Return the format with the day that the route writes.

        RefusedError(PROMPT_MISMATCH) where it thinks otherwise.
        """
        day, effort = (settings.get(key) for key in ("date", "effort")) if isinstance(settings, dict) else (None, None)
        if not isinstance(day, str) or effort != self.effort:
            message = f"the route's prompts say {settings!r}, this format asks for the effort {self.effort}"
            raise RefusedError(Reason.PROMPT_MISMATCH, message, field="prompt_settings")
        return replace(self, day=day)

    def render(self, prompt: Prompt) -> Ids:
        """Return the prompt's ids as served on `day`."""
        start, role, message, text, *rest = self._pieces(prompt)
        return (*_system(self.tokenizer, (start, role, message, text)), *encode_pieces(self.tokenizer, rest))

    def _pieces(self, prompt: Prompt) -> Iterator[Piece]:
        return prompt_pieces(prompt, self.tokenizer, day=self.day, effort=self.effort)

    def special_text(self, prompt: Prompt) -> str | None:
        found = (self.tokenizer.find_control(piece) for piece in self._pieces(prompt) if isinstance(piece, str))
        return next((control[1] for control in found if control is not None), None)

    def declare_tools(self, tools: Sequence[JsonObject]) -> str:
        """Refuse: tools also change what the system message says."""
        message = f"{self.name} declares {len(tools)} tools in two messages, so they cannot travel in one"
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field="tools")

    def assemble(self, parts: Parts) -> Assembled:
        """Return ids and spans of an answer.

        The body is the final message's text, behind its header where `think_closed`; or, where it holds control tokens,
        all that follows the analysis (or the prompt) as it was written, headers included.
        """
        if any(isinstance(piece, int) for piece in parts.body):
            return self._written(parts)
        _check_plain(parts)
        ids: list[int] = []
        spans: list[Span] = []
        for kind, stretch in self._stretches(parts):
            if stretch:
                spans.append(Span(kind, len(ids), len(ids) + len(stretch)))
                ids += stretch
        return Assembled(tuple(ids), tuple(spans))

    def _stretches(self, parts: Parts) -> Iterator[tuple[SpanKind, Sequence[int]]]:
        if parts.reasoning is not None:
            yield SpanKind.THINK_OPEN, self.marks.thinks
            yield SpanKind.REASONING, self.tokenizer.encode(parts.reasoning)
            yield SpanKind.THINK_CLOSE, self.marks.turns if parts.think_closed else ()
        elif parts.body or parts.ended:
            yield SpanKind.THINK_CLOSE, self.marks.answers
        yield SpanKind.CONTENT, encode_pieces(self.tokenizer, parts.body)
        yield SpanKind.END, (self.marks.returned,) if parts.ended else ()

    def _written(self, parts: Parts) -> Assembled:
        if parts.think_closed:
            raise _invalid("a body that closes the thinking itself stands behind one that is closed")
        head: list[Piece] = [] if parts.reasoning is None else [*self.marks.thinks, parts.reasoning]
        begun = tuple(encode_pieces(self.tokenizer, [*head, *parts.body]))
        ids = begun
        if parts.ended:
            last = messages_of(begun, self.marks, self.tokenizer)[-1]
            ids = (*begun, self.marks.call if last.recipient else self.marks.returned)
        spans = self.layout(ids, thinking=True)
        if self._said(ids) != parts:
            raise _invalid("the body can be said in a simpler way")
        return Assembled(ids, spans)

    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]:  # noqa: ARG002 — one mode
        return tuple(spans_of(ids, messages_of(ids, self.marks, self.tokenizer)))

    def parts(self, ids: Ids, *, thinking: bool) -> Parts:  # noqa: ARG002 — one mode
        return self._said(ids)

    def calls_in(self, ids: Ids) -> list[EmittedCall]:
        """Return recipient and text of the last call, if any."""
        found = messages_of(ids, self.marks, self.tokenizer)
        return [EmittedCall(one.recipient, self._shown(ids, one)) for one in found if one.recipient]

    def texts_in(self, ids: Ids) -> tuple[list[str], list[str]]:
        found = [one for one in messages_of(ids, self.marks, self.tokenizer) if one.channel and not one.recipient]
        return (
            [self._shown(ids, one) for one in found if one.channel == ANALYSIS],
            [self._shown(ids, one) for one in found if one.channel != ANALYSIS],
        )

    def _shown(self, ids: Ids, message: Message) -> str:
        return self.tokenizer.decode_bytes(ids[message.text : message.stop]).decode("utf-8", errors="replace")

    def _said(self, ids: Ids) -> Parts:
        found = messages_of(ids, self.marks, self.tokenizer)
        ended = bool(found) and found[-1].ended and ids[-1] != self.marks.end
        stop = len(ids) - 1 if ended else len(ids)
        thought = bool(found) and found[0].channel == ANALYSIS and ids[: found[0].text] == self.marks.thinks
        reasoning = self._text(ids, found[0].text, found[0].stop) if thought else None
        plain = self._plain(ids, found, thought=thought)
        if plain is not None:
            text = self._text(ids, plain, stop)
            closed = thought and len(found) > 1
            if text or closed or ended or thought or not ids:
                return Parts(reasoning, think_closed=closed, body=(text,) if text else (), ended=ended)
        body = tuple(self._as_written(ids, found[0].stop if thought else 0, stop))
        if not any(isinstance(piece, int) for piece in body):
            raise _invalid(f"{body[0]!r} begins a header, and reads as a final message's text")
        return Parts(reasoning, think_closed=False, body=body, ended=ended)

    def _plain(self, ids: Ids, found: Sequence[Message], *, thought: bool) -> int | None:
        """Return where the content of a plain answer begins.

        A plain answer has no headers of its own. None for others.
        """
        if not found or (thought and len(found) == 1 and not found[0].ended):
            return len(ids)
        last, begin = found[-1], found[0].stop if thought else 0
        lead = self.marks.turns if thought else self.marks.answers
        is_plain = len(found) == 1 + thought and last.channel == FINAL and ids[begin : last.text] == lead
        return last.text if is_plain else None

    def _as_written(self, ids: Ids, start: int, stop: int) -> Iterator[Piece]:
        """Yield control ids, and the text between two of them."""
        for position in range(start, stop):
            if ids[position] in self.marks.control:
                yield from self._between(ids, start, position)
                yield ids[position]
                start = position + 1
        yield from self._between(ids, start, stop)

    def _between(self, ids: Ids, start: int, stop: int) -> Iterator[Piece]:
        if stop > start:
            yield self._text(ids, start, stop)

    def _text(self, ids: Ids, start: int, stop: int) -> str:
        """Return the text of `ids[start:stop]`.

        A refusal counts tokens from the start of `ids`.
        """
        try:
            return self.tokenizer.decode_text(ids[start:stop])
        except RefusedError as error:
            raise error.after(start) from None


@lru_cache(maxsize=64)
def _system(tokenizer: Tokenizer, pieces: tuple[Piece, ...]) -> Ids:
    """Return the system message's ids.

    The longest part of many prompts, and the same on all of a day.
    """
    return tuple(encode_pieces(tokenizer, pieces))


def _check_plain(parts: Parts) -> None:
    if len(parts.body) > 1 or not all(isinstance(piece, str) and piece for piece in parts.body):
        raise _invalid("a final message is one text")
    if parts.reasoning is None and parts.think_closed:
        raise _invalid("an answer that did not think cannot close its thinking")
    if parts.reasoning is not None and not parts.think_closed and (parts.body or parts.ended):
        raise _invalid("content or an end token stands before the end of the thinking")


def _invalid(message: str) -> RefusedError:
    return RefusedError(Reason.LAYOUT_INVALID, message, field="content")


def load(name: str, tokenizer: Tokenizer, effort: str) -> HarmonyFormat:
    """Return harmony on `tokenizer`, called `name`, for one effort."""
    return HarmonyFormat(name, tokenizer, marks_of(tokenizer), effort)


load_low, load_medium, load_high = (partial(load, effort=effort) for effort in EFFORTS)
