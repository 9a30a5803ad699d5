"""A prompt in harmony, as text and control ids.

Guarantees: one text for one prompt, with analysis only where calls follow the last final message. Engines use
openai-harmony or the model's chat template, and differ in places: a tool's result is plain here, as the former has it,
and instructions are the developer's, as the latter has it. Prompts that they print differently with as many tokens are
refused where only a count vouches for them (`ambiguity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.formats.harmony.tokens import ANALYSIS, CALL, CHANNEL, COMMENTARY, END, FINAL, MESSAGE, START
from pipeline.formats.harmony.typescript import declare, written_once
from pipeline.formats.messages import calls_of, content_of, reasoning_of, role_of, unsupported, written
from pipeline.formats.pieces import Piece
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CUTOFF = "2024-06"
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
CALLS = "\nCalls to these tools must go to the commentary channel: 'functions'."
_FIRST = ("system", "developer")
_ROLES = ("user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class _Called:
    """The call that a tool's answer answers."""

    name: str
    id: Json


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer, *, day: str, effort: str) -> Iterator[Piece]:
    """Yield the rendered prompt, up to the model's turn.

    RefusedError(PROMPT_UNSUPPORTED) on what engines print differently.
    """
    if not prompt.thinking:
        raise unsupported("gpt-oss always thinks")
    if not prompt.messages:
        raise unsupported("there are no messages")
    known = {name: tokenizer.id_of(name) for name in (START, CHANNEL, MESSAGE, END, CALL)}
    for piece in _pieces(prompt, day, effort):
        yield known[piece.name] if isinstance(piece, _Mark) else piece


@dataclass(frozen=True, slots=True)
class _Mark:
    """A control token by name, sections from equal text."""

    name: str


_START, _CHANNEL, _MESSAGE, _END, _CALL = (_Mark(name) for name in (START, CHANNEL, MESSAGE, END, CALL))


def _pieces(prompt: Prompt, day: str, effort: str) -> Iterator[str | _Mark]:
    top = f"{IDENTITY}\nKnowledge cutoff: {CUTOFF}\nCurrent date: {day}\n\nReasoning: {effort}\n\n"
    yield from (_START, "system", _MESSAGE, f"{top}{CHANNELS}{CALLS if prompt.tools else ''}", _END)
    first = prompt.messages[0]
    instructions = content_of(first) if first.get("role") in _FIRST else None
    if instructions == "":
        raise unsupported("an empty system message, which engines print or leave out")
    if instructions is not None or prompt.tools:
        sections = [] if instructions is None else [f"# Instructions\n\n{instructions}"]
        sections += [declare(prompt.tools)] if prompt.tools else []
        yield from (_START, "developer", _MESSAGE, "\n\n".join(sections), _END)
    yield from _turns(prompt.messages[0 if instructions is None else 1 :])
    yield from (_START, "assistant")


def ambiguity(prompt: Prompt, tokenizer: Tokenizer) -> str | None:
    """Return what another engine prints differently at equal length.

    Only ids show which it was; None where nothing is ambiguous. One engine puts instructions into a message of their
    own behind the tools; an old template puts two line feeds behind them; templates write many tools' types in their
    own way; and some write a call's arguments anew, or a tool's result as JSON.
    """

    def length(text: str) -> int:
        return len(tokenizer.encode(text))

    first = prompt.messages[0]
    instructed = first.get("role") in _FIRST
    if instructed and prompt.tools:
        return "instructions beside tools, of which engines put either first"
    if instructed and length(content_of(first) + "\n\n") <= length(content_of(first)):
        return "instructions that may hide line feeds behind them"
    if not written_once(prompt.tools):
        return "a tool that engines declare in different ways"
    for message in prompt.messages:
        if message.get("role") == "assistant" and any(written(made) != text for _, text, made in _made(message)):
            return "a call's arguments, which engines that parse them write in another way"
        if message.get("role") == "tool" and length(content_of(message)) >= length(written(content_of(message))):
            return "a tool's result that is as long as its JSON"
    return None


def _made(message: JsonObject) -> Iterator[tuple[str, str, dict[str, Json]]]:
    return calls_of(message, as_text=False)


def _turns(messages: Sequence[JsonObject]) -> Iterator[str | _Mark]:
    finals = [at for at, message in enumerate(messages) if message.get("role") == "assistant" and not _calls(message)]
    last_final = finals[-1] if finals else -1
    called: _Called | None = None
    for position, message in enumerate(messages):
        role = role_of(message, _ROLES)
        if role == "user":
            yield from (_START, "user", _MESSAGE, content_of(message), _END)
        elif role == "tool":
            yield from _result(message, called)
        elif _calls(message):
            yield from _call(message, thought=position > last_final)
            called = _called(message)
        else:
            called = None
            if not (text := content_of(message)):
                raise unsupported("an empty answer, which engines leave out or print")
            yield from (_START, "assistant", _CHANNEL, FINAL, _MESSAGE, text, _END)


def _calls(message: JsonObject) -> bool:
    if "tool_calls" in message and not message["tool_calls"]:
        raise unsupported("tool_calls is there and empty, which templates take for a call")
    return "tool_calls" in message


def _call(message: JsonObject, *, thought: bool) -> Iterator[str | _Mark]:
    """Yield a call, and the analysis before it where `thought`.

    The model sees that analysis until its turn has come to a final message.
    """
    if message.get("content"):
        raise unsupported("content beside a call, which engines put on different channels")
    reasoning = reasoning_of(message, "", END)
    if thought and reasoning:
        yield from (_START, "assistant", _CHANNEL, ANALYSIS, _MESSAGE, reasoning, _END)
    made = list(_made(message))
    if len(made) != 1:
        raise unsupported(f"{len(made)} calls in one message, of which the template prints the first")
    name, arguments, _ = made[0]
    yield from (_START, f"assistant to=functions.{name}", _CHANNEL, f"{COMMENTARY} json", _MESSAGE, arguments, _CALL)


def _called(message: JsonObject) -> _Called:
    [name] = [name for name, _, _ in _made(message)]
    calls = message["tool_calls"]
    call = calls[0] if isinstance(calls, list) else None
    return _Called(name, call.get("id") if isinstance(call, dict) else None)


def _result(message: JsonObject, called: _Called | None) -> Iterator[str | _Mark]:
    """Yield a tool's answer.

    Engines find the function's name by the id, or take the last call's; both must be the same.
    """
    if called is None or called.id is None or message.get("tool_call_id") != called.id:
        raise unsupported("a tool's answer that does not answer the call before it")
    author = f"functions.{called.name} to=assistant"
    yield from (_START, author, _CHANNEL, COMMENTARY, _MESSAGE, content_of(message), _END)
