r"""Prompts from a JSONL file, one at a time: `{"id", "messages", "tools"?, "thinking"?, "dataset"?}` a line.

Guarantees: lines end at b"\n" alone (U+2028 and NEL are text), types are taken as they are, memory does not grow
with the file. Blank lines are passed over; null for an optional key is the key left out. Refuses, line by line and
never with a crash: what is not that schema, an unknown or repeated key, an id met before. A misspelt key would change
what is asked and paid for, so it is no mere warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.base.disk_sets import DiskSet
from pipeline.base.json_lines import LONGEST_LINE, json_kind, malformed, require_shallow, strict_object
from pipeline.records import Json, JsonObject, Prompt, Refusal, RefusedError

KEYS = frozenset({"id", "messages", "tools", "thinking", "dataset"})


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is no prompt: where it stands, its id where one could be read, and why."""

    file: str
    line: int
    refusal: Refusal
    id: str | None = None


def read_prompts(path: Path) -> Iterator[Prompt | RefusedLine]:
    """Every line of the file, in order, as a Prompt or as what was wrong with it. Raises OSError on opening."""
    seen = DiskSet()
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
        malformed(f"unknown key {unknown!r}: a prompt has {', '.join(sorted(KEYS))}", unknown)
    thinking = _optional(line, "thinking", default=True)
    if not isinstance(thinking, bool):
        malformed(f"thinking must be true or false, is {json_kind(thinking)}", "thinking")
    return Prompt(
        id=_id(line),
        messages=tuple(_messages(line)),
        tools=tuple(_objects(_optional(line, "tools", default=[]), "tools")),
        thinking=thinking,
        dataset=_encodable(_text(_optional(line, "dataset", default=""), "dataset"), "dataset"),
    )


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
        yield None


def _entry(path: Path, number: int, line: bytes | None, seen: DiskSet) -> Prompt | RefusedLine:
    row_id: str | None = None
    try:
        if line is None:
            malformed(f"the line is longer than {LONGEST_LINE} bytes")
        value = strict_object(line)
        prompt = prompt_of(value)
        row_id = prompt.id
        if not seen.add(row_id):
            malformed(f"id {row_id!r} stands on an earlier line too: ids name rows, so each may occur once", "id")
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
        malformed("id must not be empty", "id")
    return _encodable(row_id, "id")


def _encodable(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        malformed(f"{name} holds half a surrogate pair and has no UTF-8", name)
    return text


def _messages(line: JsonObject) -> list[JsonObject]:
    messages = _objects(line.get("messages"), "messages")
    if not messages:
        malformed("messages must not be empty", "messages")
    for index, message in enumerate(messages):
        _text(message.get("role"), f"messages[{index}].role")
        if not isinstance(message.get("content"), str | list | None):
            malformed("content must be text, a list of parts or null", f"messages[{index}].content")
    return messages


def _objects(value: Json, name: str) -> list[JsonObject]:
    if not isinstance(value, list):
        malformed(f"{name} must be a list of objects, is {json_kind(value)}", name)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            malformed(f"{name}[{index}] must be an object, is {json_kind(item)}", f"{name}[{index}]")
    return value  # type: ignore[return-value]  # every item was just seen to be an object


def _text(value: Json, name: str) -> str:
    if not isinstance(value, str):
        malformed(f"{name} must be a string, is {json_kind(value)}", name)
    return value


def texts_of(prompt: Prompt) -> Iterator[tuple[str, str]]:
    """Every text of the prompt with its path, in order; keys are texts too."""
    yield from _within("messages", [dict(message) for message in prompt.messages])
    yield from _within("tools", [dict(tool) for tool in prompt.tools])


def _within(place: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _within(f"{place}[{index}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield place, key
            yield from _within(f"{place}.{key}", item)
