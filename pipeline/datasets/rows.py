"""Hold a dataset's row, or why it gives no prompt.

Guarantees: a Rejected says where its row stands. A column's value of another type than published is refused by the
column's name; nothing is converted but what the schema says is JSON in a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipeline.base.json_lines import object_of, require_shallow, strict_object
from pipeline.records import Json, JsonObject, RefusedError


@dataclass(frozen=True, slots=True)
class Raw:
    """A row as published, or joined of `parts`.

    `line` is the record's number in its file, from 1 (in JSON lines, the line).
    """

    value: JsonObject
    file: str
    line: int
    parts: tuple[Raw, ...] = ()


class Reject(StrEnum):
    """Why a row gives no prompt; `MEANINGS` explains each."""

    NOT_JSON = "not_json"
    WRONG_SHAPE = "wrong_shape"
    NO_TURNS = "no_turns"
    EMPTY_PROMPT = "empty_prompt"
    UNKNOWN_ROLE = "unknown_role"
    UNREADABLE_TOOLS = "unreadable_tools"
    TOOL_TWICE = "tool_twice"
    PLUGINS = "plugins"
    JOINED = "joined"
    NO_BEGINNING = "no_beginning"
    REPEATED = "repeated"
    UNFAITHFUL = "unfaithful"
    UNRENDERABLE = "unrenderable"
    SPECIAL_TEXT = "special_text"
    TOO_LONG = "too_long"
    CONTAMINATED = "contaminated"
    DUPLICATE = "duplicate"
    OVER_CAP = "over_cap"
    NOT_DRAWN = "not_drawn"


MEANINGS: Mapping[Reject, str] = {
    Reject.NOT_JSON: "the line is no JSON object in UTF-8, or names a key twice",
    Reject.WRONG_SHAPE: "a column is absent, or holds another type than the published schema says",
    Reject.NO_TURNS: "the row has no turns, or none that a model would answer",
    Reject.EMPTY_PROMPT: "the question is empty or white space",
    Reject.UNKNOWN_ROLE: "a turn has a role that the dataset does not publish, or that no template knows",
    Reject.UNREADABLE_TOOLS: "the row says that there are functions, and what follows is no list of them",
    Reject.TOOL_TWICE: "two functions of the row have one name and say different things",
    Reject.PLUGINS: "the conversation used a chat site's plug-ins, which no prompt can declare",
    Reject.JOINED: "no loss: the row continues a conversation, and its turns stand in that conversation's prompt",
    Reject.NO_BEGINNING: "the row continues a conversation whose earlier part is not in the source",
    Reject.REPEATED: "an earlier row has this id or, where rows have none, says all the same",
    Reject.UNFAITHFUL: "a fault of this program: the prompt would say another thing than the row; please report it",
    Reject.UNRENDERABLE: "the target's own template cannot render the prompt",
    Reject.SPECIAL_TEXT: "the prompt spells a control token of the target, which engines read differently",
    Reject.TOO_LONG: "the prompt is over the limit even when cut to its first turn",
    Reject.CONTAMINATED: "the prompt shares an n-gram of words with an evaluation prompt",
    Reject.DUPLICATE: "an earlier row asks the same: turns, tools and thinking are equal but for case and white space",
    Reject.OVER_CAP: "as many rows as the cap allows begin with this first user turn",
    Reject.NOT_DRAWN: "no fault: the draw took as many rows as were asked for, and not this one",
}


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row without a prompt: where it stands, and why.

    `row` is what was read, where it could be read.
    """

    id: str | None
    reason: Reject
    detail: str
    file: str
    line: int
    row: JsonObject | None = None

    def document(self) -> dict[str, Json]:
        """Return one line of rejects.jsonl."""
        known: dict[str, Json] = {"id": self.id, "reason": str(self.reason), "detail": self.detail}
        row: dict[str, Json] = {} if self.row is None else {"row": dict(self.row)}
        return {**known, "file": self.file, "line": self.line, **row}


class RejectedError(Exception):
    """A row gives no prompt; `of` makes the value."""

    def __init__(self, reason: Reject, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def of(self, raw: Raw, row_id: str | None = None) -> Rejected:
        """Return the row, rejected for this reason."""
        return Rejected(row_id, self.reason, str(self), raw.file, raw.line, raw.value)


def text_in(row: JsonObject, column: str) -> str:
    """Return the text of a column.

    Raises RejectedError(WRONG_SHAPE).
    """
    value = row.get(column)
    if not isinstance(value, str):
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} is {_kind(value)}, not text")
    return value


def question_in(row: JsonObject, column: str) -> str:
    """Return the text of a column that holds the question.

    Raises RejectedError(WRONG_SHAPE, EMPTY_PROMPT).
    """
    value = text_in(row, column)
    if not value.strip():
        raise RejectedError(Reject.EMPTY_PROMPT, f"{column} is empty")
    return value


def objects_in(row: JsonObject, column: str) -> list[JsonObject]:
    """Return the objects that a column lists.

    Raises RejectedError(WRONG_SHAPE).
    """
    return objects(row.get(column), column)


def objects(value: Json, column: str) -> list[JsonObject]:
    """Return the value as a list of objects.

    Raises RejectedError(WRONG_SHAPE).
    """
    if not isinstance(value, list):
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} is {_kind(value)}, not a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise RejectedError(Reject.WRONG_SHAPE, f"{column}[{index}] is {_kind(item)}, not an object")
    return value  # type: ignore[return-value]  # every item was just seen to be an object


def turns_in(
    row: JsonObject, column: str, roles: Mapping[str, str], *, role_key: str, text_key: str
) -> list[JsonObject]:
    """Return the turns that a column lists, in OpenAI's schema.

    Raises RejectedError(WRONG_SHAPE, UNKNOWN_ROLE).
    """
    return [
        {"role": role_in(turn, role_key, roles), "content": text_in(turn, text_key)} for turn in objects_in(row, column)
    ]


def parsed(text: str, column: str) -> Json:
    """Return the JSON that a string holds.

    Raises RejectedError(WRONG_SHAPE).
    """
    try:
        held = object_in(f'{{"value":{text}\n}}')
    except RefusedError as error:
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} holds no JSON: {error.refusal.detail}") from None
    if len(held) != 1:
        raise RejectedError(Reject.WRONG_SHAPE, f"{column} holds more than one JSON value")
    return held["value"]


def object_in(text: str) -> dict[str, Json]:
    """Return the JSON object that a text is.

    Raises RefusedError.
    """
    try:
        value = object_of(text.encode("utf-8"))
    except UnicodeEncodeError:  # half a surrogate pair
        value = strict_object(text)
    require_shallow(value)
    return value


def role_in(turn: JsonObject, key: str, roles: Mapping[str, str]) -> str:
    """Return the turn's role in OpenAI's words.

    Raises RejectedError(UNKNOWN_ROLE).
    """
    role = turn.get(key)
    if not isinstance(role, str) or role not in roles:
        raise RejectedError(Reject.UNKNOWN_ROLE, f"a turn has the {key} {role!r}; published are {', '.join(roles)}")
    return roles[role]


def _kind(value: Json) -> str:
    names = {bool: "a boolean", list: "a list", dict: "an object", str: "text", type(None): "null or absent"}
    return names.get(type(value), "a number")
