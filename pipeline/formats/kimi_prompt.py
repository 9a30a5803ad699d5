"""Prompts as Kimi-K2.5's chat template lays them out.

Guarantees: the turns, the tool declaration and the thinking of earlier turns are those of the model's own template.
Refuses what that template would print as something else than it is: null reasoning, images, unnamed roles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pipeline.formats.kimi_tokens import (
    ARGUMENT_BEGIN,
    ASSISTANT,
    CALL_BEGIN,
    CALL_END,
    END,
    MIDDLE,
    SECTION_BEGIN,
    SECTION_END,
    SYSTEM,
    THINK,
    THINK_CLOSE,
    USER,
    Piece,
)
from pipeline.formats.typescript import SchemaError, declare_functions, sort_keys
from pipeline.records import Json, JsonObject, Prompt, Reason, RefusedError
from pipeline.tokenizers import Tokenizer


def declare_tools(tools: Sequence[JsonObject]) -> str:
    """The text that declares `tools` (OpenAI schema): TypeScript, or compact JSON where a schema has no such form."""
    ordered = [sort_keys(dict(tool)) for tool in tools]
    functions: list[JsonObject] = []
    for tool in ordered:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise RefusedError(
                Reason.PROMPT_UNSUPPORTED, "a tool is not {'type': 'function', 'function': {…}}", field="tools"
            )
        functions.append(function)
    try:
        return declare_functions(functions)
    except SchemaError:
        return json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer, *, generation_prompt: bool = True) -> Iterator[Piece]:
    one = tokenizer.id_of
    if prompt.tools:
        yield from (one(SYSTEM), "tool_declare", one(MIDDLE), declare_tools(prompt.tools), one(END))
    history = _last_plain_answer(prompt.messages)
    for position, message in enumerate(prompt.messages):
        keeps = prompt.thinking and position > history
        yield from _message_pieces(message, tokenizer, keeps_reasoning=keeps)
    if generation_prompt:
        yield from (one(ASSISTANT), "assistant", one(MIDDLE), one(THINK))
        if not prompt.thinking:
            yield one(THINK_CLOSE)


def template_variables(prompt: Prompt) -> dict[str, Json]:
    """What Kimi's tokenizer gives its template beside messages and tools."""
    if not prompt.tools:
        return {}
    declared = declare_tools(prompt.tools)
    return {"tools_ts_str": declared} if declared.startswith("# Tools") else {}


def _last_plain_answer(messages: Sequence[JsonObject]) -> int:
    """Index of the last assistant message without calls, -1 if none: reasoning up to it is not rendered."""
    plain = [
        i for i, message in enumerate(messages) if message.get("role") == "assistant" and not message.get("tool_calls")
    ]
    return plain[-1] if plain else -1


def _message_pieces(message: JsonObject, tokenizer: Tokenizer, *, keeps_reasoning: bool) -> Iterator[Piece]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a message has the role {role!r}", field="messages")
    opener = {"user": USER, "assistant": ASSISTANT}.get(role, SYSTEM)
    yield from (tokenizer.id_of(opener), _speaker(message, role), tokenizer.id_of(MIDDLE))
    if role == "assistant":
        yield from _assistant_pieces(message, tokenizer, keeps_reasoning=keeps_reasoning)
    elif role == "tool":
        yield f"## Return of {_required_text(message, 'tool_call_id')}\n" + _content(message)
    else:
        yield _content(message)
    yield tokenizer.id_of(END)


def _speaker(message: JsonObject, role: str) -> str:
    name = message.get("name")
    if name is not None and (not isinstance(name, str) or role == "assistant"):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a {role} message has the name {name!r}", field="messages")
    return name or role


def _assistant_pieces(message: JsonObject, tokenizer: Tokenizer, *, keeps_reasoning: bool) -> Iterator[Piece]:
    one = tokenizer.id_of
    reasoning = _reasoning(message)
    yield from (one(THINK), reasoning if keeps_reasoning else "", one(THINK_CLOSE), _content(message))
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, list):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, "tool_calls is no list", field="messages")
    yield one(SECTION_BEGIN)
    for call in calls:
        yield from _call_pieces(call, tokenizer)
    yield one(SECTION_END)


def _reasoning(message: JsonObject) -> str:
    """`reasoning_content`, or OpenRouter's `reasoning`; an explicit null is refused: templates print it as `None`."""
    for key in ("reasoning_content", "reasoning"):
        if key in message:
            return _required_text(message, key)
    return ""


def _call_pieces(call: Json, tokenizer: Tokenizer) -> Iterator[Piece]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, "a tool call has no function", field="messages")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, "a tool call's arguments are no string", field="messages")
    one = tokenizer.id_of
    yield from (one(CALL_BEGIN), _required_text(call, "id"), one(ARGUMENT_BEGIN), arguments, one(CALL_END))


def _required_text(value: JsonObject, key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"{key} is {type(text).__name__}, not text", field="messages")
    return text


def _content(message: JsonObject) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text_part(part) for part in content)
    raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"content is {type(content).__name__}", field="messages")


def _text_part(part: Json) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise RefusedError(
        Reason.PROMPT_UNSUPPORTED, f"a content part is {kind}, and only text is rendered", field="messages"
    )
