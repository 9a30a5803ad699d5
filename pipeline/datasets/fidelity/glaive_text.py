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
MARK = r"(?: <\|endoftext\|>)?"
BETWEEN = r"\n\n\n?"
LATER = re.compile(r"(?:\A|\n\n+)(?:USER|ASSISTANT|A|FUNCTION RESPONSE): ")


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
    at = 0
    for number, message in enumerate(spoken):
        turn = re.compile((BETWEEN if at else "") + _written(message), re.DOTALL)
        ended = turn.match(chat, at)
        if ended is None and number and (repeat := re.compile(BETWEEN + _written(spoken[number - 1])).match(chat, at)):
            found.state(Change.REPEAT, f"the turn behind messages[{first + number - 1}]")
            at = repeat.end()
            ended = turn.match(chat, at)
        if ended is None:
            found.differ(f"messages[{first + number}] is {message!r:.200}, and the row says {chat[at : at + 200]!r}")
            return
        at = ended.end()
    rest = chat[at:]
    if later := len(LATER.findall(rest)):
        found.state(Change.AFTER_QUESTION, f"{later} turns")
    if rest.strip("\n") and LATER.match(rest) is None:
        found.differ(f"messages[{first + len(spoken) - 1}] ends early: the row goes on {rest[:200]!r}")


def _written(message: JsonObject) -> str:
    """Return a pattern of the text that the message was."""
    content = re.escape(str(message["content"]))
    if message["role"] == "user":
        return f"USER: {content}{MARK}"
    if message["role"] == "tool":
        return f"FUNCTION RESPONSE: {content}{MARK}"
    return f"(?:ASSISTANT|A): {content}{_call(message.get('tool_calls'))}{MARK}"


def _call(calls: Json) -> str:
    if not isinstance(calls, list):
        return ""
    ((call,),) = ([one for one in calls if isinstance(one, dict)],)
    function: Any = call["function"]
    name, arguments = re.escape(function["name"]), re.escape(function["arguments"])
    return rf"""<functioncall>\s*\{{\s*"name":\s*"{name}",\s*"arguments":\s*('?){arguments}\1\s*\}}\s*?"""


def _objects(text: str) -> list[Json]:
    """Return JSON objects that stand one after another."""
    decoder, found, at = json.JSONDecoder(), list[Json](), 0
    while text[at:].strip():
        at = len(text) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
