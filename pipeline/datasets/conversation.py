"""Recorded conversations as prompts: where one is sound, and after which of its turns an answer is asked for.

Guarantees: a prompt ends on a turn that waits for an answer (a user's or a tool's), and no turn of it is empty,
reordered or reworded; the answers that were recorded after it are left out, since the target gives its own.

By what two prompts are the same question: the user's turns and the tools, but for case and white space.

Guarantees: text is compared in NFC, folded, its white space (CR LF too) as single blanks; the prompt itself keeps its
own.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import TypeAlias

from pipeline.base.json_lines import line_of
from pipeline.datasets.rows import Reject, RejectedError
from pipeline.records import Json, JsonObject, Prompt

Messages: TypeAlias = tuple[JsonObject, ...]
ASKING = frozenset({"user", "tool"})


def identity(dataset: str, own: Json, *content: Json) -> str:
    """The row's id: the dataset and the id that the row has, or where it has none, a hash of what it says."""
    if isinstance(own, str | int) and not isinstance(own, bool) and own != "":
        return f"{dataset}-{own}"
    return f"{dataset}-{hashlib.blake2b(line_of(content), digest_size=10).hexdigest()}"


def sound(turns: Sequence[JsonObject]) -> Messages:
    """The turns before the first that cannot be kept: an empty one, or an answer to an answer.

    A user's turn that says the one before it again is one turn. Raises RejectedError where the question is empty, or
    an answer comes before any question.
    """
    kept: list[JsonObject] = []
    for turn in turns:
        before = kept[-1].get("role") if kept else None
        if is_empty(turn) or (turn["role"] == before == "assistant"):
            break
        if turn["role"] == "assistant" and before not in ASKING:
            reason = Reject.NO_BEGINNING if _asks(turns) else Reject.NO_TURNS
            raise RejectedError(reason, "the conversation begins with an answer")
        if not (turn["role"] == "user" and kept and kept[-1] == turn):
            kept.append(turn)
    return _with_a_question(kept, turns)


def is_empty(turn: JsonObject) -> bool:
    """Whether a turn says nothing: no text but white space, and no calls."""
    content = turn.get("content")
    return not turn.get("tool_calls") and (content is None or (isinstance(content, str) and not content.strip()))


def _with_a_question(kept: Sequence[JsonObject], turns: Sequence[JsonObject]) -> Messages:
    if _asks(kept):
        return tuple(kept)
    if _asks(turns):
        raise RejectedError(Reject.EMPTY_PROMPT, "the first user turn is empty")
    raise RejectedError(Reject.NO_TURNS, "the row has no user turn")


def _asks(turns: Sequence[JsonObject]) -> bool:
    return any(turn["role"] == "user" for turn in turns)


def waiting(messages: Sequence[JsonObject]) -> list[int]:
    """How many messages stand before each answer that may be asked for; a user or a tool has spoken last."""
    roles = [message["role"] for message in messages]
    ends = range(1, len(roles) + 1)
    return [end for end in ends if roles[end - 1] in ASKING and (end == len(roles) or roles[end] == "assistant")]


def asked_last(messages: Sequence[JsonObject]) -> Messages:
    """The conversation up to its last open question. Raises RejectedError(NO_TURNS)."""
    return tuple(messages[: _open(messages)[-1]])


def asked_somewhere(messages: Sequence[JsonObject], row_id: str) -> Messages:
    """The conversation up to one of its open questions, drawn by the row's id. Raises RejectedError(NO_TURNS).

    Where the recorded answers act on a machine, each answer is another kind of text (a call, a look, a last word), and
    a prefix is the only true history: what followed answers something that the target never said.
    """
    ends = _open(messages)
    drawn = int.from_bytes(hashlib.blake2b(row_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return tuple(messages[: ends[drawn % len(ends)]])


def _open(messages: Sequence[JsonObject]) -> list[int]:
    if ends := waiting(messages):
        return ends
    raise RejectedError(Reject.NO_TURNS, "no turn of the row waits for an answer")


SEPARATOR = "\x1f"


def skeleton(prompt: Prompt) -> str:
    """All that the user says, and the names of the tools in order of the alphabet."""
    turns = [normal(text_of(message)) for message in prompt.messages if message.get("role") == "user"]
    return SEPARATOR.join([*turns, "", *sorted(map(_tool_name, prompt.tools))])


def first_turn(prompt: Prompt) -> str:
    """The user's first turn; empty where no user speaks."""
    return next((text_of(message) for message in prompt.messages if message.get("role") == "user"), "")


def normal(text: str) -> str:
    """The text as it is compared."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def digest(key: str) -> str:
    """A key of any length in 32 characters, to be sent and kept."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def text_of(message: JsonObject) -> str:
    """A message's text, the text parts of a list one after another."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _tool_name(tool: JsonObject) -> str:
    function = tool.get("function")
    return str(function.get("name")) if isinstance(function, dict) else str(tool.get("name"))
