"""The columns of a row by their published types.

Guarantees: a value of another type is refused by the column's name; nothing is converted but what the schema says is
JSON in a string.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.base.json_lines import object_of
from pipeline.base.prompts import require_shallow, strict_object
from pipeline.datasets.rows import Reject, RejectedError
from pipeline.records import Json, JsonObject, RefusedError


def text_in(row: JsonObject, column: str) -> str:
    """The text of a column. Raises RejectedError(WRONG_SHAPE)."""
    value = row.get(column)
    if not isinstance(value, str):
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} is {_kind(value)}, not text")
    return value


def question_in(row: JsonObject, column: str) -> str:
    """The text of a column that holds the question. Raises RejectedError(WRONG_SHAPE, EMPTY_PROMPT)."""
    value = text_in(row, column)
    if not value.strip():
        raise RejectedError(Reject.EMPTY_PROMPT, f"{column} is empty")
    return value


def objects_in(row: JsonObject, column: str) -> list[JsonObject]:
    """The objects of a column that holds a list of them. Raises RejectedError(WRONG_SHAPE)."""
    return objects(row.get(column), column)


def objects(value: Json, column: str) -> list[JsonObject]:
    """The same, of a value that was read already."""
    if not isinstance(value, list):
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} is {_kind(value)}, not a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise RejectedError(Reject.WRONG_SHAPE, f"{column}[{index}] is {_kind(item)}, not an object")
    return value  # type: ignore[return-value]  # every item was just seen to be an object


def parsed(text: str, column: str) -> Json:
    """The JSON that a string holds, read strictly. Raises RejectedError(WRONG_SHAPE)."""
    try:
        held = object_in(f'{{"value":{text}\n}}')
    except RefusedError as error:
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} holds no JSON: {error.refusal.detail}") from None
    if len(held) != 1:
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} holds more than one JSON value")
    return held["value"]


def object_in(text: str) -> dict[str, Json]:
    """The JSON object that a text is, read strictly. Raises RefusedError."""
    try:
        value = object_of(text.encode("utf-8"))
    except UnicodeEncodeError:  # half a surrogate pair
        value = strict_object(text)
    require_shallow(value)
    return value


def role_in(turn: JsonObject, key: str, roles: Mapping[str, str]) -> str:
    """The turn's role in OpenAI's words. Raises RejectedError(UNKNOWN_ROLE)."""
    role = turn.get(key)
    if not isinstance(role, str) or role not in roles:
        raise RejectedError(Reject.UNKNOWN_ROLE, f"a turn has the {key} {role!r}; published are {', '.join(roles)}")
    return roles[role]


def _kind(value: Json) -> str:
    names = {bool: "a boolean", list: "a list", dict: "an object", str: "text", type(None): "null or absent"}
    return names.get(type(value), "a number")
