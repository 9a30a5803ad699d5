"""Compare a prompt of Glaive by writing its row again.

Guarantees: the system text and the conversation are written from the prompt alone and must be what the row holds,
character by character, up to the question; what follows is counted. Only blanks inside a call's own syntax may differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipeline.datasets.fidelity.comparison import Change, Comparison
from pipeline.records import Json, JsonObject, Prompt

OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
HEADS = {"user": "USER: ", "assistant": "ASSISTANT: ", "tool": "FUNCTION RESPONSE: "}
SHORT = {**HEADS, "assistant": "A: "}
"""Heads of a row in which no `ASSISTANT: ` stands."""
MARK = " <|endoftext|>"
CALL_OPENS = re.compile(r'<functioncall>\s*\{\s*"name":\s*"')
ARGUMENTS_OPEN = re.compile(r'",\s*"arguments":\s*(\'?)')
CALL_CLOSES = re.compile(r"\s*\}\s*?(?= <\|endoftext\|>|\n\n|\Z)")
KEYS = {
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


def compare_with_text(row: JsonObject, prompt: Prompt, found: Comparison) -> None:
    """Compare a prompt with a published row."""
    system, chat = str(row["system"]), str(row["chat"])
    spoken = [*prompt.messages]
    if system.startswith(OFFER):
        found.compare_tools(_objects(system.removeprefix(OFFER)), prompt.tools)
    else:
        told = [{"role": "system", "content": system.removeprefix("SYSTEM: ").removesuffix("\n\n")}] if system else []
        if told != spoken[: len(told)] or prompt.tools:
            found.differ(f"messages[0] is {spoken[:1]!r:.200}, and the row's system text is {system!r:.200}")
            return
        spoken = spoken[len(told) :]
    found.state(Change.DECODED, "turn heads, <|endoftext|> and calls")
    _walk(chat, spoken, len(prompt.messages) - len(spoken), found)


def _walk(chat: str, spoken: list[JsonObject], first: int, found: Comparison) -> None:
    heads = HEADS if HEADS["assistant"] in chat else SHORT
    head = f"(?:{'|'.join(heads.values())})"
    separator = "\n\n" if re.search(rf"[^\n]\n\n{head}", chat) else "\n\n\n"
    at = 0
    for number, message in enumerate(spoken):
        ended = _end_of(message, chat, at, (heads, separator))
        if (
            ended is None
            and number
            and (repeated := _end_of(spoken[number - 1], chat, at, (heads, separator))) is not None
        ):
            found.state(Change.REPEAT, f"the turn behind messages[{first + number - 1}]")
            at = repeated
            ended = _end_of(message, chat, at, (heads, separator))
        if ended is None:
            found.differ(f"messages[{first + number}] is {message!r:.200}, and the row says {chat[at : at + 200]!r}")
            return
        at = ended
    if later := len(re.findall(rf"(?:\A|\n\n+){head}", chat[at:])):
        found.state(Change.AFTER_QUESTION, f"{later} turns")
    if chat[at:] and re.match(head, chat[at:]) is None:
        found.differ(f"messages[{first + len(spoken) - 1}] ends early: the row goes on {chat[at : at + 200]!r}")


def _end_of(message: JsonObject, chat: str, at: int, row: tuple[Mapping[str, str], str]) -> int | None:
    """Return where the turn that says this ends, or None.

    `row` has the row's heads and separator. Raises KeyError for a message that no turn can be.
    """
    (heads, separator), role = row, str(message["role"])
    if extra := message.keys() - KEYS[role]:
        raise KeyError(f"a {role} message has {min(extra)!r}")
    said = heads[role] + str(message["content"])
    ended = at + len(said) if chat.startswith(said, at) else None
    if ended is not None and "tool_calls" in message:
        ended = _end_of_call(message["tool_calls"], chat, ended)
    if ended is None or ended == len(chat):
        return ended
    if chat.startswith(MARK, ended):
        return len(chat) - len(chat[ended + len(MARK) :].lstrip("\n"))
    return ended + len(separator) if chat.startswith(separator, ended) else None


def _end_of_call(calls: Any, chat: str, at: int) -> int | None:  # noqa: ANN401 — any JSON
    """Return where the call that says this ends, or None."""
    (call,) = calls
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    opened = CALL_OPENS.match(chat, at)
    if opened is None or not chat.startswith(name, opened.end()):
        return None
    between = ARGUMENTS_OPEN.match(chat, opened.end() + len(name))
    if between is None or not chat.startswith(arguments + between[1], between.end()):
        return None
    closed = CALL_CLOSES.match(chat, between.end() + len(arguments + between[1]))
    return None if closed is None else closed.end()


def _objects(text: str) -> list[Json]:
    """Return JSON objects that stand one after another."""
    decoder, found, at = json.JSONDecoder(), list[Json](), 0
    while text[at:].strip():
        at = len(text) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
