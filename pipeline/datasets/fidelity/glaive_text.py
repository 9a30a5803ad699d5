"""Compare a prompt of Glaive by writing its row again.

Guarantees: the system text and the conversation are written from the prompt alone and must be what the row holds,
character by character, up to the question; what follows is counted. Only blanks inside a call's own syntax may differ.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pipeline.datasets.fidelity.comparison import Change, Comparison
from pipeline.records import Json, JsonObject, Prompt

OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
HEADS = {"user": "USER", "assistant": "(?:ASSISTANT|A)", "tool": "FUNCTION RESPONSE"}
HEAD = "(?:USER|ASSISTANT|A|FUNCTION RESPONSE): "
LATER = re.compile(rf"(?:\A|\n\n+){HEAD}")
BY_TWO = re.compile(rf"[^\n]\n\n{HEAD}")
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
    separator = "\n\n" if BY_TWO.search(chat) else "\n\n\n"
    at = 0
    for number, message in enumerate(spoken):
        turn = _written(message, separator)
        ended = turn.match(chat, at)
        if ended is None and number and (repeat := _written(spoken[number - 1], separator).match(chat, at)):
            found.state(Change.REPEAT, f"the turn behind messages[{first + number - 1}]")
            at = repeat.end()
            ended = turn.match(chat, at)
        if ended is None:
            found.differ(f"messages[{first + number}] is {message!r:.200}, and the row says {chat[at : at + 200]!r}")
            return
        at = ended.end()
    if later := len(LATER.findall(chat[at:])):
        found.state(Change.AFTER_QUESTION, f"{later} turns")
    if chat[at:] and LATER.match(chat[at:]) is None:
        found.differ(f"messages[{first + len(spoken) - 1}] ends early: the row goes on {chat[at : at + 200]!r}")


def _written(message: JsonObject, separator: str) -> re.Pattern[str]:
    """Return a pattern of the text that the message was.

    Raises KeyError for a message that no turn can be.
    """
    role = str(message["role"])
    if extra := message.keys() - KEYS[role]:
        raise KeyError(f"a {role} message has {min(extra)!r}")
    content, call = re.escape(str(message["content"])), _call(message["tool_calls"]) if "tool_calls" in message else ""
    return re.compile(rf"{HEADS[role]}: {content}{call}(?: <\|endoftext\|>\n*|{separator}|\Z)", re.DOTALL)


def _call(calls: Any) -> str:  # noqa: ANN401 — any JSON
    (call,) = calls
    name, arguments = re.escape(call["function"]["name"]), re.escape(call["function"]["arguments"])
    return rf"""<functioncall>\s*\{{\s*"name":\s*"{name}",\s*"arguments":\s*('?){arguments}\1\s*\}}\s*?"""


def _objects(text: str) -> list[Json]:
    """Return JSON objects that stand one after another."""
    decoder, found, at = json.JSONDecoder(), list[Json](), 0
    while text[at:].strip():
        at = len(text) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
