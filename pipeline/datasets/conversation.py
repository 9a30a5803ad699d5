"""Cut recorded conversations to prompts, and compare their questions.

Guarantees: a prompt ends on a turn that waits for an answer (a user's or a tool's), and no turn of it is empty,
reordered or reworded. The answers that were recorded after it are left out, since the target gives its own.

Two prompts ask the same if all is equal but for case and white space in messages' text: every turn, the system's too,
tools as a whole, thinking. Text is compared in NFC, case-folded, its white space (CR LF too) as single blanks. The
prompt itself keeps its own text.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from pipeline.base.json_lines import line_of
from pipeline.datasets.rows import Reject, RejectedError
from pipeline.records import Json, JsonObject, Prompt

Messages: TypeAlias = tuple[JsonObject, ...]
ASKING = frozenset({"user", "tool"})
"""Roles whose turn waits for an answer."""
SEPARATOR = "\x1f"


def identity(dataset: str, own: Json, *content: Json) -> str:
    """Return the row's id, prefixed by its dataset.

    `own` is the id that the row has; where it has none, a hash of `content` is used.
    """
    if isinstance(own, str | int) and not isinstance(own, bool) and own != "":
        return f"{dataset}-{own}"
    return f"{dataset}-{hashlib.blake2b(line_of(content), digest_size=10).hexdigest()}"


def sound(turns: Sequence[JsonObject]) -> Messages:
    """Return the turns before the first that cannot be kept.

    That is an empty one, or an answer to an answer. A user's turn that repeats the one before it is dropped. Raises
    RejectedError where the question is empty, or an answer comes before any question.
    """
    kept: list[JsonObject] = []
    for turn in turns:
        before = kept[-1].get("role") if kept else None
        if is_empty(turn) or (turn["role"] == before == "assistant"):
            break
        if turn["role"] == "assistant" and before not in ASKING:
            reason = Reject.NO_BEGINNING if _has_user(turns) else Reject.NO_TURNS
            raise RejectedError(reason, "the conversation begins with an answer")
        if not (turn["role"] == "user" and kept and kept[-1] == turn):
            kept.append(turn)
    if _has_user(kept):
        return tuple(kept)
    if _has_user(turns):
        raise RejectedError(Reject.EMPTY_PROMPT, "the first user turn is empty")
    raise RejectedError(Reject.NO_TURNS, "the row has no user turn")


def is_empty(turn: JsonObject) -> bool:
    """Whether a turn has no calls and no text."""
    content = turn.get("content")
    return not turn.get("tool_calls") and (content is None or (isinstance(content, str) and not content.strip()))


def _has_user(turns: Sequence[JsonObject]) -> bool:
    return any(turn["role"] == "user" for turn in turns)


def open_questions(messages: Sequence[JsonObject]) -> list[int]:
    """Return how many messages stand before each possible answer.

    A user or a tool has spoken last, and an answer or nothing follows.
    """
    roles = [message["role"] for message in messages]
    ends = range(1, len(roles) + 1)
    return [end for end in ends if roles[end - 1] in ASKING and (end == len(roles) or roles[end] == "assistant")]


def to_last_question(prompt: Prompt) -> Prompt:
    """Return the conversation up to its last open question.

    Raises RejectedError(NO_TURNS).
    """
    return replace(prompt, messages=prompt.messages[: require_questions(prompt.messages)[-1]])


def to_drawn_question(prompt: Prompt) -> Prompt:
    """Return the conversation up to a question drawn by id.

    Used where the recorded answers act on a machine: each is another kind of text (a call, a look, a last word), and
    only a prefix is a true history, as what followed answers something that the target never said. Raises
    RejectedError(NO_TURNS).
    """
    ends = require_questions(prompt.messages)
    own = prompt.id.encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.blake2b(own, digest_size=8).digest(), "big")
    return replace(prompt, messages=prompt.messages[: ends[drawn % len(ends)]])


def to_every_question(prompt: Prompt, one: Prompt) -> list[Prompt]:
    """Return a prompt for each open question, in order.

    `one`, which alone would be asked, keeps its id; to the id of each other the number of its question is added. Raises
    RejectedError(NO_TURNS).
    """
    own = require_questions(one.messages)[-1]
    return [
        replace(prompt, id=prompt.id if end == own else f"{prompt.id}#{number}", messages=prompt.messages[:end])
        for number, end in enumerate(require_questions(prompt.messages), 1)
    ]


def require_questions(messages: Sequence[JsonObject]) -> list[int]:
    """Return `open_questions`; RejectedError(NO_TURNS) if none."""
    if ends := open_questions(messages):
        return ends
    raise RejectedError(Reject.NO_TURNS, "no turn of the row waits for an answer")


# When two prompts ask the same


def skeleton(prompt: Prompt) -> str:
    """Return what prompts that ask the same share."""
    said, rest = list[str](), list[Json]()
    for message in prompt.messages:
        content = message.get("content")
        said.append(normal(content) if isinstance(content, str) else "")
        rest.append({key: value for key, value in message.items() if key != "content" or not isinstance(value, str)})
    told = line_of([rest, prompt.tools, prompt.thinking]).decode("utf-8")
    return SEPARATOR.join([*said, told])


def first_turn(prompt: Prompt) -> str:
    """Return the user's first turn, or ""."""
    return next((text_of(message) for message in prompt.messages if message.get("role") == "user"), "")


def normal(text: str) -> str:
    """Return the text as it is compared."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def digest(key: str) -> str:
    """Return a key of any length in 32 characters."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def text_of(message: JsonObject) -> str:
    """Return a message's text, parts joined by line feeds."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
