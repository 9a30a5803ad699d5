"""Prompts as Kimi's chat templates lay them out.

Guarantees: the turns, the tool declaration and the thinking of earlier turns are those of the release's own template,
also where that leaves something out (July 2025's K2 prints no tool calls of earlier turns). Refuses what a template
would print as something else than it is: null reasoning, images, unnamed roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.formats.format import Opener
from pipeline.formats.kimi.releases import MessageStyle, Release
from pipeline.formats.kimi.tokens import (
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
)
from pipeline.formats.pieces import Piece
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt, Reason, RefusedError


def prompt_pieces(
    prompt: Prompt, tokenizer: Tokenizer, release: Release, *, generation_prompt: bool = True
) -> Iterator[Piece]:
    """Yield the whole prompt as text and control ids.

    Tools, the default system turn, messages, and the turn that the model is to fill.
    """
    one = tokenizer.id_of
    if prompt.tools:
        yield from (one(SYSTEM), "tool_declare", one(MIDDLE), release.declare(prompt.tools), one(END))
    if release.default_system and prompt.messages[:1] and prompt.messages[0].get("role") != "system":
        yield from (one(SYSTEM), "system", one(MIDDLE), release.default_system, one(END))
    yield from _turns(prompt, tokenizer, release)
    if generation_prompt:
        yield from (one(ASSISTANT), "assistant", one(MIDDLE))
        if release.opener is Opener.PROMPT:
            yield from (one(THINK),) if prompt.thinking else (one(THINK), one(THINK_CLOSE))


def _turns(prompt: Prompt, tokenizer: Tokenizer, release: Release) -> Iterator[Piece]:
    if release.turns is MessageStyle.PLAIN:
        for position, message in enumerate(prompt.messages):
            yield from _of_message(position, _plain_pieces(message, tokenizer))
        return
    if release.turns is MessageStyle.TEXT:
        for position, message in enumerate(prompt.messages):
            yield from _of_message(position, _text_pieces(message, tokenizer))
        return
    history = -1 if release.preserves_thinking else _last_plain_answer(prompt.messages)
    for position, message in enumerate(prompt.messages):
        keeps = (prompt.thinking or release.opener is not Opener.PROMPT) and position > history
        yield from _of_message(position, _message_pieces(message, tokenizer, keeps_reasoning=keeps))


def _of_message(position: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the same pieces; a refusal names the message."""
    try:
        yield from pieces
    except RefusedError as error:
        raise error.inside(f"messages[{position}]") from None


def _plain_pieces(message: JsonObject, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield a turn of July 2025's template: role and content."""
    role, content = message.get("role"), message.get("content")
    opener = _PLAIN_OPENERS.get(role) if isinstance(role, str) else None
    if opener is None or role is None:
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a message has the role {role!r}", field="role")
    if content is None:
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a {role} message {_NO_CONTENT}", field="content")
    yield from (tokenizer.id_of(opener), str(role), tokenizer.id_of(MIDDLE), _content(message), tokenizer.id_of(END))


def _text_pieces(message: JsonObject, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield a turn of text, as K2-0905's templates agree."""
    role = message.get("role")
    if role not in ("system", "user", "assistant") or message.get("tool_calls"):
        what = "tool calls" if message.get("tool_calls") else f"the role {role!r}"
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a message has {what}", field="role")
    one = tokenizer.id_of
    yield from (one(_PLAIN_OPENERS[role]), _speaker(message, role), one(MIDDLE), _content(message), one(END))


_NO_CONTENT = "has no content, and this template prints that in one way by transformers 4 and in another by 5"
_PLAIN_OPENERS: Mapping[str, str] = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": SYSTEM}
_OPENERS: Mapping[str, str] = {**_PLAIN_OPENERS, "tool_declare": SYSTEM}
"""Later templates also know the role of a message that declares tools in the text."""


def _last_plain_answer(messages: Sequence[JsonObject]) -> int:
    """Return the index of the last answer without calls.

    -1 if there is none. Reasoning up to it is not rendered.
    """
    plain = [
        i for i, message in enumerate(messages) if message.get("role") == "assistant" and not message.get("tool_calls")
    ]
    return plain[-1] if plain else -1


def _message_pieces(message: JsonObject, tokenizer: Tokenizer, *, keeps_reasoning: bool) -> Iterator[Piece]:
    role = message.get("role")
    opener = _OPENERS.get(role) if isinstance(role, str) else None
    if opener is None or not isinstance(role, str):  # the template prints a role that it does not know as the system's
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a message has the role {role!r}", field="role")
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
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"a {role} message has the name {name!r}", field="name")
    return name or role


def _assistant_pieces(message: JsonObject, tokenizer: Tokenizer, *, keeps_reasoning: bool) -> Iterator[Piece]:
    one = tokenizer.id_of
    reasoning = _reasoning(message)
    yield from (one(THINK), reasoning if keeps_reasoning else "", one(THINK_CLOSE), _content(message))
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, list):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, "tool_calls is no list", field="tool_calls")
    yield one(SECTION_BEGIN)
    for position, call in enumerate(calls):
        try:
            yield from _call_pieces(call, tokenizer)
        except RefusedError as error:
            raise error.inside(f"tool_calls[{position}]") from None
    yield one(SECTION_END)


def _reasoning(message: JsonObject) -> str:
    """Return `reasoning_content`, or OpenRouter's `reasoning`.

    An explicit null is refused: templates print it as `None`.
    """
    for key in ("reasoning_content", "reasoning"):
        if key in message:
            return _required_text(message, key)
    return ""


def _call_pieces(call: Json, tokenizer: Tokenizer) -> Iterator[Piece]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, "a tool call has no function", field="function")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise RefusedError(
            Reason.PROMPT_UNSUPPORTED, "a tool call's arguments are no string", field="function.arguments"
        )
    one = tokenizer.id_of
    yield from (one(CALL_BEGIN), _required_text(call, "id"), one(ARGUMENT_BEGIN), arguments, one(CALL_END))


def _required_text(value: JsonObject, key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"{key} is {type(text).__name__}, not text", field=key)
    return text


def _content(message: JsonObject) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text_part(part, position) for position, part in enumerate(content))
    raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"content is {type(content).__name__}", field="content")


def _text_part(part: Json, position: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    message = f"a content part is {kind}, and only text is rendered"
    raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field=f"content[{position}]")
