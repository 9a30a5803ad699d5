r"""Prompts from a JSONL file, one at a time.

Schema of a line: `{"id", "messages", "tools"?, "thinking"?, "dataset"?}`.

Guarantees: only b"\n" ends a line (U+2028 and NEL are text), types are taken as they are, memory does not grow with the
file. Blank lines are skipped; null for an optional key counts as absent. Refuses line by line, never with a crash:
another schema, an unknown or repeated key, an unknown role, an id that an earlier line has. An unknown key or role is
refused because a misspelt one would change what is asked and paid for: templates print a role that they do not know as
the system's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.base.disk_sets import DiskSet
from pipeline.base.file_kinds import require_lines
from pipeline.base.json_lines import LONGEST_LINE, json_kind, malformed, require_shallow, strict_object
from pipeline.records import Json, JsonObject, Prompt, Refusal, RefusedError

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of a message. `function` is an older name of `tool`, and no template here knows it."""
KEYS = frozenset({"id", "messages", "tools", "thinking", "dataset"})


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is no prompt, and why.

    `id` is None where none could be read.
    """

    file: str
    line: int
    refusal: Refusal
    id: str | None = None


def read_prompts(path: Path) -> Iterator[Prompt | RefusedLine]:
    """Yield each line as a Prompt or a RefusedLine.

    In the order of the file. Raises OSError on opening, and FileKindError where the file holds no lines.
    """
    with closing(DiskSet()) as ids, path.open("rb") as file:
        require_lines(path, file)
        for number, line in enumerate(_lines(file), start=1):
            if line is not None and not line.strip():
                continue
            row_id: str | None = None
            try:
                if line is None:
                    malformed(f"the line is longer than {LONGEST_LINE} bytes")
                value = strict_object(line)
                prompt = prompt_of(value)
                row_id = prompt.id
                if not ids.add(row_id):
                    malformed(
                        f"id {row_id!r} stands on an earlier line too: ids name rows, so each may occur once", "id"
                    )
                require_shallow(value)
            except RefusedError as error:
                yield RefusedLine(str(path), number, error.refusal, row_id)
            else:
                yield prompt


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line; None for one that is too long."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
        yield None


def prompt_of(line: JsonObject) -> Prompt:
    """Return the Prompt of one object. Raises RefusedError(MALFORMED_INPUT).

    >>> prompt_of({"id": "a", "messages": [{"role": "user", "content": "Hello"}]}).thinking
    True
    """
    if not line.keys() <= KEYS:
        unknown = min(line.keys() - KEYS)
        malformed(f"unknown key {unknown!r}: a prompt has {', '.join(sorted(KEYS))}", unknown)
    thinking = _optional(line, "thinking", default=True)
    if not isinstance(thinking, bool):
        malformed(f"thinking must be true or false, is {json_kind(thinking)}", "thinking")
    row_id = _text(line.get("id"), "id")
    if not row_id:
        malformed("id must not be empty", "id")
    return Prompt(
        id=_encodable(row_id, "id"),
        messages=tuple(_messages(line)),
        tools=tuple(_objects(_optional(line, "tools", default=[]), "tools")),
        thinking=thinking,
        dataset=_encodable(_text(_optional(line, "dataset", default=""), "dataset"), "dataset"),
    )


def _messages(line: JsonObject) -> list[JsonObject]:
    messages = _objects(line.get("messages"), "messages")
    if not messages:
        malformed("messages must not be empty", "messages")
    for index, message in enumerate(messages):
        role = _text(message.get("role"), f"messages[{index}].role")
        if role not in ROLES:
            malformed(f"unknown role {role!r:.40}: roles are {', '.join(ROLES)}", f"messages[{index}].role")
        if not isinstance(message.get("content"), str | list | None):
            malformed("content must be text, a list of parts or null", f"messages[{index}].content")
    return messages


def _objects(value: Json, name: str) -> list[JsonObject]:
    if not isinstance(value, list):
        malformed(f"{name} must be a list of objects, is {json_kind(value)}", name)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            malformed(f"{name}[{index}] must be an object, is {json_kind(item)}", f"{name}[{index}]")
    return value  # type: ignore[return-value]  # the loop above checked every item


def _text(value: Json, name: str) -> str:
    if not isinstance(value, str):
        malformed(f"{name} must be a string, is {json_kind(value)}", name)
    return value


def _optional(line: JsonObject, key: str, *, default: Json) -> Json:
    value = line.get(key)
    return default if value is None else value


def _encodable(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        malformed(f"{name} holds half a surrogate pair and has no UTF-8", name)
    return text


def texts_of(prompt: Prompt) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each text, in order.

    Keys are texts too.
    """
    yield from _texts_within("messages", [dict(message) for message in prompt.messages])
    yield from _texts_within("tools", [dict(tool) for tool in prompt.tools])


def _texts_within(place: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts_within(f"{place}[{index}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield place, key
            yield from _texts_within(f"{place}.{key}", item)
