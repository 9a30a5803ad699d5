"""By what two prompts are the same question: the user's turns and the tools, but for case and white space.

Guarantees: text is compared in NFC, folded, its white space (CR LF too) as single blanks; the prompt itself keeps its
own.
"""

from __future__ import annotations

import hashlib
import unicodedata

from pipeline.records import JsonObject, Prompt

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
