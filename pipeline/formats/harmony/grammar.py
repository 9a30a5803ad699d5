"""The messages of an answer in harmony.

Guarantees: every legal sequence is read, canonical or not, whole or cut anywhere; all else is refused. Legal is: any
number of analysis and commentary messages that `<|end|>` ends, then a final message that `<|return|>` ends or a call,
which is a message with a recipient, that `<|call|>` ends. A recipient stands before the channel or behind it, a content
type behind both, with `<|constrain|>` or without. Source: the parser of openai-harmony 0.0.8, which is laxer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.formats.harmony.tokens import ANALYSIS, CHANNELS, FINAL, Marks
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids, Reason, RefusedError, Span, SpanKind

_CHANNEL = "|".join(CHANNELS)
_ROLE = re.compile(r"(?P<role>assistant)?(?: to=(?P<to>[^\s<=]+))?")
_KIND = re.compile(rf"(?P<channel>{_CHANNEL})(?: to=(?P<to>[^\s<=]+))?(?: (?P<type>[^\s<=]+))? ?")
_TYPE = re.compile(r"[^\s<=]+")
_BEGUN = re.compile(rf"(?:{_CHANNEL})(?: (?:to?|to=[^\s<=]*)(?: [^\s<=]*)?| [^\s<=]*)? ?")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as positions in the ids.

    `ids[start:text]` is its header, `ids[text:stop]` its text, `ids[stop]` what ends it if `ended`. `channel` is None
    where the answer was cut inside the header, which then has no text.
    """

    start: int
    text: int
    stop: int
    ended: bool
    channel: str | None
    recipient: str | None


def messages_of(ids: Ids, marks: Marks, tokenizer: Tokenizer) -> list[Message]:
    """Return the messages in order.

    RefusedError(LAYOUT_INVALID or UNKNOWN_ID) outside the layout.
    """
    if ids and not 0 <= min(ids) <= max(ids) < tokenizer.size:
        tokenizer.decode_bytes(ids)
    control = marks.control
    at = [position for position, token in enumerate(ids) if token in control]
    found: list[Message] = []
    start = 0
    while start < len(ids):
        message = _message(ids, start, at, marks, tokenizer)
        found.append(message)
        if not message.ended:
            break
        _require_end(ids, message, marks, tokenizer)
        start = message.stop + 1
    return found


def _message(ids: Ids, start: int, at: Sequence[int], marks: Marks, tokenizer: Tokenizer) -> Message:
    inside = [position for position in at if position >= start]
    opened = next((position for position in inside if ids[position] == marks.message), None)
    if opened is None:
        _require_begun(ids, start, inside, marks, tokenizer)
        return Message(start, len(ids), len(ids), ended=False, channel=None, recipient=None)
    header = [position for position in inside if position <= opened]
    channel, recipient = _header(ids, start, header, marks, tokenizer)
    stop = next((position for position in inside if position > opened), len(ids))
    return Message(start, opened + 1, stop, stop < len(ids), channel, recipient)


def _header(ids: Ids, start: int, at: Sequence[int], marks: Marks, tokenizer: Tokenizer) -> tuple[str, str | None]:
    """Return channel and recipient of a whole header.

    `at` are the positions of its control tokens.
    """
    first, names = _named(ids, start, at, marks)
    if names not in ([marks.channel, marks.message], [marks.channel, marks.constrain, marks.message]):
        raise _invalid(f"{_names(names, tokenizer)} are no header of a message", at[0])
    role_text, kind_text, *type_text = (
        _text(ids, left + 1, right, tokenizer) for left, right in pairwise([first, *at[-len(names) :]])
    )
    role, kind = _ROLE.fullmatch(role_text), _KIND.fullmatch(kind_text)
    constrained = all(_TYPE.fullmatch(text) for text in type_text) and not (type_text and kind and kind["type"])
    if role is None or kind is None or not constrained or bool(role["role"]) != (start > 0):
        raise _invalid(f"{tokenizer.decode_text(ids[start : at[-1]])!r} is no header of a message", start)
    recipient = role["to"] or kind["to"]
    if (role["to"] and kind["to"]) or (kind["type"] and not recipient):
        raise _invalid(f"{tokenizer.decode_text(ids[start : at[-1]])!r} is no header of a message", start)
    return kind["channel"], recipient


def _named(ids: Ids, start: int, at: Sequence[int], marks: Marks) -> tuple[int, list[int]]:
    """Return where the header's words begin, and its control tokens.

    The first message's `<|start|>` is the prompt's.
    """
    names = [ids[position] for position in at]
    if start == 0:
        return -1, names
    if not names or at[0] != start or names[0] != marks.start:
        raise _invalid("a message begins without <|start|>", start)
    return start, names[1:]


def _require_begun(ids: Ids, start: int, at: Sequence[int], marks: Marks, tokenizer: Tokenizer) -> None:
    """Refuse a cut header that begins no header.

    Each of its words is whole but the last, which may be the beginning of one.
    """
    first, names = _named(ids, start, at, marks)
    if names not in ([], [marks.channel], [marks.channel, marks.constrain]):
        raise _invalid(f"{_names(names, tokenizer)} are no header of a message", start)
    ends = [first, *at[len(at) - len(names) :], len(ids)]
    texts = [_cut_text(ids, left + 1, right, tokenizer) for left, right in pairwise(ends)]
    role = _ROLE.fullmatch(texts[0])
    checks = [
        role is not None and bool(role["role"]) == (start > 0),
        len(texts) > 2 and _KIND.fullmatch(texts[1]) is not None,  # noqa: PLR2004 — <|constrain|> ends the second
    ]
    begun = [_is_begun_role(texts[0], later=start > 0), _is_begun_kind(texts[-1]), True]
    if not all([*checks[: len(texts) - 1], begun[len(texts) - 1]]):
        raise _invalid(f"{tokenizer.decode_bytes(ids[start:])!r} begins no header of a message", start)


def _is_begun_role(text: str, *, later: bool) -> bool:
    rest = text.removeprefix("assistant") if later else text
    if later and rest == text:
        return "assistant".startswith(text)
    return " to=".startswith(rest) or _ROLE.fullmatch("assistant" + rest) is not None


def _is_begun_kind(text: str) -> bool:
    return any(name.startswith(text) for name in CHANNELS) or _BEGUN.fullmatch(text) is not None


def _require_end(ids: Ids, message: Message, marks: Marks, tokenizer: Tokenizer) -> None:
    """Refuse a message with an end of another kind.

    What ends a message says what it was: a call, the answer, or a step before it.
    """
    final = message.channel == FINAL
    wanted = marks.call if message.recipient else marks.returned if final else marks.end
    if ids[message.stop] != wanted:
        name = tokenizer.name_of(ids[message.stop])
        what = "a call" if message.recipient else f"a message of the channel {message.channel}"
        raise _invalid(f"{name} stands in {what}, which {tokenizer.name_of(wanted)} ends", message.stop)
    if wanted != marks.end and message.stop + 1 < len(ids):
        raise _invalid(f"{tokenizer.name_of(wanted)} is not the last token", message.stop + 1)


def spans_of(ids: Ids, messages: Sequence[Message]) -> Iterator[Span]:
    """Yield what each stretch of ids is.

    What leads to a text is hidden: `think_open` before an analysis, otherwise `think_close`. A call is a tool section
    with its header; the `<|end|>` before it closes what came before.
    """
    start = 0
    for message in messages:
        kind, leads = _kinds(message)
        if kind is SpanKind.TOOL_SECTION:
            yield from _span(SpanKind.THINK_CLOSE, start, message.start)
            yield from _span(kind, message.start, message.stop)
        else:
            yield from _span(leads, start, message.text)
            yield from _span(kind, message.text, message.stop)
        start = message.stop
    if messages and messages[-1].ended:
        last = messages[-1]
        closes = not last.recipient and last.channel != FINAL
        yield Span(SpanKind.THINK_CLOSE if closes else SpanKind.END, start, len(ids))


def _kinds(message: Message) -> tuple[SpanKind, SpanKind]:
    """Return the kinds of a message's text and lead."""
    if message.recipient:
        return SpanKind.TOOL_SECTION, SpanKind.TOOL_SECTION
    if message.channel == ANALYSIS or (message.channel is None and message.start == 0):
        return SpanKind.REASONING, SpanKind.THINK_OPEN
    return SpanKind.CONTENT, SpanKind.THINK_CLOSE


def _span(kind: SpanKind, start: int, stop: int) -> Iterator[Span]:
    if stop > start:
        yield Span(kind, start, stop)


def _text(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> str:
    """Return the text of `ids[start:stop]`.

    A refusal counts tokens from the start of `ids`.
    """
    try:
        return tokenizer.decode_text(ids[start:stop])
    except RefusedError as error:
        raise error.after(start) from None


def _cut_text(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> str:
    """Return text that may end in half a character.

    That is U+FFFD, which begins no header.
    """
    return tokenizer.decode_bytes(ids[start:stop]).decode("utf-8", errors="replace")


def _names(names: Sequence[int], tokenizer: Tokenizer) -> str:
    return " ".join(str(tokenizer.name_of(token)) for token in names) or "no control tokens"


def _invalid(message: str, position: int) -> RefusedError:
    return RefusedError(Reason.LAYOUT_INVALID, message, token_position=position)
