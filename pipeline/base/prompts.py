r"""Prompts from a JSONL file, one at a time: `{"id", "messages", "tools"?, "thinking"?, "dataset"?}` a line.

Guarantees: lines end at b"\n" alone (U+2028 and NEL are text), types are taken as they are, memory does not grow
with the file. Blank lines are passed over; null for an optional key is the key left out. Refuses, line by line and
never with a crash: what is not that schema, an unknown or repeated key, an id met before. A misspelt key would change
what is asked and paid for, so it is no mere warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import BinaryIO, NoReturn

from pipeline.base.disk_sets import Seen
from pipeline.records import Json, JsonObject, Prompt, Reason, Refusal, RefusedError

KEYS = frozenset({"id", "messages", "tools", "thinking", "dataset"})
LONGEST_LINE = 64 * 1024 * 1024
MOST_NESTED = 200
"""Objects and lists in one another. Readers stop at about 1,000, writers before that, so that some could be read and
not be written again."""


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is no prompt: where it stands, its id where one could be read, and why."""

    file: str
    line: int
    refusal: Refusal
    id: str | None = None


def read_prompts(path: Path) -> Iterator[Prompt | RefusedLine]:
    """Every line of the file, in order, as a Prompt or as what was wrong with it. Raises OSError on opening."""
    seen = Seen()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), start=1):
                if line is None or line.strip():
                    yield _entry(path, number, line, seen)
    finally:
        seen.close()


def prompt_of(line: JsonObject) -> Prompt:
    """The Prompt that an object in the schema names. Raises RefusedError(MALFORMED_INPUT)."""
    if not line.keys() <= KEYS:
        unknown = min(line.keys() - KEYS)
        _malformed(f"unknown key {unknown!r}: a prompt has {', '.join(sorted(KEYS))}", unknown)
    thinking = _optional(line, "thinking", default=True)
    if not isinstance(thinking, bool):
        _malformed(f"thinking must be true or false, is {_kind(thinking)}", "thinking")
    return Prompt(
        id=_id(line),
        messages=tuple(_messages(line)),
        tools=tuple(_objects(_optional(line, "tools", default=[]), "tools")),
        thinking=thinking,
        dataset=_encodable(_text(_optional(line, "dataset", default=""), "dataset"), "dataset"),
    )


def strict_object(text: str | bytes) -> dict[str, Json]:
    """The JSON object that `text` (UTF-8) is; NaN and repeated keys are no JSON here.

    Raises RefusedError(MALFORMED_INPUT).
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        _malformed("the JSON is nested too deeply to read")
    except UnicodeDecodeError as error:
        _malformed(f"not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}")
    except ValueError as error:
        _malformed(f"not JSON: {error}")
    if not isinstance(value, dict):
        _malformed(f"must be a JSON object, is {_kind(value)}")
    return value


def require_shallow(value: Json) -> None:
    """Raises RefusedError(MALFORMED_INPUT) where the value is nested deeper than `MOST_NESTED`."""
    holders = [value]
    for _ in range(MOST_NESTED):
        inner = (one.values() if isinstance(one, dict) else one for one in holders if isinstance(one, dict | list))
        holders = [one for each in inner for one in each if isinstance(one, dict | list)]
    if holders:
        _malformed(f"the JSON is nested too deeply, over {MOST_NESTED} objects and lists in one another")


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
        yield None


def _entry(path: Path, number: int, line: bytes | None, seen: Seen) -> Prompt | RefusedLine:
    row_id: str | None = None
    try:
        if line is None:
            _malformed(f"the line is longer than {LONGEST_LINE} bytes")
        value = strict_object(line)
        prompt = prompt_of(value)
        row_id = prompt.id
        if not seen.add(row_id):
            _malformed(f"id {row_id!r} stands on an earlier line too: ids name rows, so each may occur once", "id")
        require_shallow(value)
    except RefusedError as error:
        return RefusedLine(str(path), number, error.refusal, row_id)
    return prompt


def _optional(line: JsonObject, key: str, *, default: Json) -> Json:
    value = line.get(key)
    return default if value is None else value


def _id(line: JsonObject) -> str:
    row_id = _text(line.get("id"), "id")
    if not row_id:
        _malformed("id must not be empty", "id")
    return _encodable(row_id, "id")


def _encodable(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        _malformed(f"{name} holds half a surrogate pair and has no UTF-8", name)
    return text


def _messages(line: JsonObject) -> list[JsonObject]:
    messages = _objects(line.get("messages"), "messages")
    if not messages:
        _malformed("messages must not be empty", "messages")
    for index, message in enumerate(messages):
        _text(message.get("role"), f"messages[{index}].role")
        if not isinstance(message.get("content"), str | list | None):
            _malformed("content must be text, a list of parts or null", f"messages[{index}].content")
    return messages


def _objects(value: Json, name: str) -> list[JsonObject]:
    if not isinstance(value, list):
        _malformed(f"{name} must be a list of objects, is {_kind(value)}", name)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            _malformed(f"{name}[{index}] must be an object, is {_kind(item)}", f"{name}[{index}]")
    return value  # type: ignore[return-value]  # every item was just seen to be an object


def _text(value: Json, name: str) -> str:
    if not isinstance(value, str):
        _malformed(f"{name} must be a string, is {_kind(value)}", name)
    return value


def _kind(value: Json) -> str:
    return {bool: "a boolean", list: "a list", dict: "an object", str: "a string", type(None): "null or absent"}.get(
        type(value), "a number"
    )


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
    return value


def _finite(number: str) -> float:
    value = float(number)
    if isinf(value):
        raise ValueError(f"{number[:20]} is beyond every number that can be written again")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _malformed(detail: str, field: str | None = None) -> NoReturn:
    raise RefusedError(Reason.MALFORMED_INPUT, detail, field=field)
