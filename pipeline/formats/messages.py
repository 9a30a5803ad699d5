"""Fields of a prompt's messages, for exact rendering.

Guarantees: a field is returned only where every engine prints the same of it. Refuses null and listed content, unknown
roles, and arguments whose JSON an engine would write anew as another text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.records import Json, JsonObject, Prompt, Reason, RefusedError


def unsupported(message: str, field: str = "messages") -> RefusedError:
    """Return the refusal of a prompt that cannot be rendered."""
    return RefusedError(Reason.PROMPT_UNSUPPORTED, message, field=field)


def role_of(message: JsonObject, known: Sequence[str]) -> str:
    """Return the message's role, one of `known`.

    Refused otherwise: templates skip other roles silently.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in known:
        raise unsupported(f"a message has the role {role!r}, known are {', '.join(known)}")
    return role


def content_of(message: JsonObject) -> str:
    """Return the message's text.

    Null is empty beside tool calls only; engines join lists in different ways.
    """
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if not isinstance(content, str):
        raise unsupported(f"content is {type(content).__name__}, not text")
    return content


def reasoning_of(message: JsonObject, content: str, close: str) -> str:
    """Return `reasoning_content`, the one name that templates know.

    Thinking inside the content is refused.
    """
    if message.get("reasoning") or (message.get("reasoning_content") is None and close in content):
        raise unsupported("earlier reasoning stands elsewhere than in reasoning_content")
    reasoning = message.get("reasoning_content", "")
    if not isinstance(reasoning, str):
        raise unsupported(f"reasoning_content is {type(reasoning).__name__}, not text")
    return reasoning


def calls_of(message: JsonObject, *, as_text: bool = True) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Yield name, argument text and arguments of each call.

    `as_text`: the template prints the text, which some engines parse and write anew first; both must be the same.
    """
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise unsupported("tool_calls is no list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise unsupported("a tool call has no function with a name")
        text = function.get("arguments")
        if not isinstance(text, str):
            raise unsupported("a tool call's arguments are no string")
        try:
            parsed = json.loads(text)
        except ValueError:
            raise unsupported(f"a tool call's arguments are no JSON: {text[:60]!r}") from None
        if not isinstance(parsed, dict) or (as_text and written(parsed) != text):
            raise unsupported(f"engines that parse a call's arguments write {text[:60]!r} in another way")
        yield str(function["name"]), text, parsed


def written(value: Json) -> str:
    """Return JSON as templates write it."""
    return json.dumps(value, ensure_ascii=False)


def with_parsed_arguments(prompt: Prompt) -> Prompt:
    """Return the prompt with arguments as objects.

    Engines hand it so to a template that wants them.
    """
    return replace(prompt, messages=tuple(map(_parsed, prompt.messages)))


def _parsed(message: JsonObject) -> JsonObject:
    if not message.get("tool_calls"):
        return message
    calls: list[Json] = [
        {"function": {"name": name, "arguments": parsed}} for name, _, parsed in calls_of(message, as_text=False)
    ]
    return {**message, "tool_calls": calls}
