"""What stays the same from chunk to chunk of a stream, so that a chunk which says nothing but text is read at once.

Guarantees: an event is read here only if it is, byte for byte, one that was read in full before with another text in
its text's place, and that text is one JSON string. Everything else is left to be read in full, so nothing that a full
reading would refuse or note passes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import orjson

from pipeline.records import Delta, Json, JsonObject

_PASSIVE = frozenset({"id", "object", "created", "model", "provider", "system_fingerprint", "service_tier"})
"""Keys of a chunk that say the same in every chunk, or nothing of the answer."""

_STAND_IN = "\N{BULLET}"
_FREE, _DELTAS_A_TRY = 16, 16
"""Frames that a stream may cost at once, and how many deltas must have been read by frames for one more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An event's bytes around the places where its delta stands, and the field of that delta."""

    field: Literal["reasoning", "content", "tool_calls"]
    head: bytes
    rest: tuple[bytes, ...]

    def read(self, events: bytes, at: int) -> tuple[str, int] | None:
        """The text of the event that begins at `at`, and where it ends, if it is this frame with one text in it."""
        if not events.startswith(self.head, at):
            return None
        start = at + len(self.head)
        stop = events.find(b'"', start)
        quoted = events[start:stop]
        rest = quoted.join(self.rest)
        if stop <= start or not events.startswith(rest, stop) or (text := _unquoted(quoted)) is None:
            return None
        return text, stop + len(rest)


@dataclass(slots=True)
class Frames:
    """The frames of one stream, one a field, learnt from the chunks that were read in full, the latest first."""

    known: list[Frame] = field(default_factory=list)
    tries: int = 0
    read: int = 0

    def run(self, events: bytes, at: int) -> tuple[list[Delta], int]:
        """The deltas of the events from `at` on that frames can read, and where the first other event begins.

        Comments between them are passed over, as in any reading.
        """
        deltas: list[Delta] = []
        while True:
            for frame in self.known:
                if (found := frame.read(events, at)) is not None:
                    deltas.append(Delta(frame.field, found[0]))
                    at = found[1]
                    break
            else:
                if (after := _after_comment(events, at)) is None:
                    self.read += len(deltas)
                    return deltas, at
                at = after

    def learn(self, data: str, chunk: JsonObject, delta: Delta) -> None:
        """Note the frame of a chunk that was read in full and added just `delta`."""
        if self.tries <= _FREE + self.read // _DELTAS_A_TRY and (frame := _frame(data, chunk, delta)) is not None:
            self.known = [frame, *(old for old in self.known if old.field != frame.field)]
        self.tries += 1


def _after_comment(events: bytes, at: int) -> int | None:
    """Where the event that begins at `at` ends, if it is one line of comment."""
    if not events.startswith(b":", at):
        return None
    stop = events.find(b"\n", at)
    return stop + 2 if events.startswith(b"\n\n", stop) else None


def _unquoted(quoted: bytes) -> str | None:
    """The text that stands in JSON as `quoted`, without quotation marks; None where the strict reader must say."""
    try:
        text = quoted.decode()
        if b"\\" not in quoted and text.isprintable():
            return text
        whole: str = orjson.loads(b'"' + quoted + b'"')
    except ValueError:
        return None
    return whole


def _frame(data: str, chunk: JsonObject, delta: Delta) -> Frame | None:
    """The frame of a chunk, proven by reading it with other text in its places."""
    expected = _with_text(chunk, delta)
    quoted = f'"{delta.text}"'
    if expected is None or delta.text == _STAND_IN or "\n" in data or quoted not in data:
        return None
    first, *middle = data.split(quoted)
    pieces = (f'{first}"', *(f'"{piece}"' for piece in middle[:-1]), f'"{middle[-1]}')
    if _read(_STAND_IN.join(pieces)) != expected:
        return None
    head, *rest = f"data: {pieces[0]}", *pieces[1:-1], f"{pieces[-1]}\n\n"
    return Frame(delta.field, head.encode(), tuple(piece.encode() for piece in rest))


def _read(data: str) -> Json:
    """The JSON, or None where it is none: the text may have been found where it is no value."""
    try:
        value: Json = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value


def _with_text(chunk: JsonObject, delta: Delta) -> dict[str, Json] | None:
    """The chunk with other text in the delta's place; None for a chunk that says more than text."""
    choices = chunk.get("choices")
    if not _only(chunk, _PASSIVE | {"choices"}) or not isinstance(choices, list) or len(choices) != 1:
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or not _only(choice, {"index", "delta"}):
        return None
    told = choice.get("delta")
    changed = _delta_with_text(told, delta) if isinstance(told, dict) else None
    return None if changed is None else {**chunk, "choices": [{**choice, "delta": changed}]}


def _delta_with_text(told: JsonObject, delta: Delta) -> dict[str, Json] | None:
    names = {"reasoning": ("reasoning", "reasoning_content"), "content": ("content",)}.get(delta.field, ())
    said = [name for name in ("reasoning", "reasoning_content", "content") if told.get(name)]
    if len(said) != 1 or said[0] not in names or not _only(told, {"role", *said, "reasoning_details"}):
        return None
    changed: dict[str, Json] = {**told, said[0]: _STAND_IN}
    if isinstance(details := told.get("reasoning_details"), list):
        changed["reasoning_details"] = [_detail_with_text(detail, delta.text) for detail in details]
    return changed


def _detail_with_text(detail: Json, text: str) -> Json:
    """OpenRouter says the reasoning twice; where it does not say the same there, it stays as it is."""
    return {**detail, "text": _STAND_IN} if isinstance(detail, dict) and detail.get("text") == text else detail


def _only(holder: Mapping[str, Json], names: frozenset[str] | set[str]) -> bool:
    """Whether every other key says nothing: null, or empty."""
    return all(key in names or value in (None, "") for key, value in holder.items())
