"""Qwen3's layout: `<|im_start|>` turns, tool calls as JSON.

Guarantees: prompts are those of Qwen3's own chat template. The model opens its thinking itself; when told not to think,
the prompt holds an empty one. Parsed calls are refused: their JSON may have been written anew. Text that NFC changes is
refused by the tokenizer, which would change it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.emitted_calls import EmittedCall, between, raw_members, text_of_pieces
from pipeline.formats.format import Opener
from pipeline.formats.messages import calls_of, content_of, reasoning_of, role_of, unsupported, written
from pipeline.formats.pieces import Piece
from pipeline.formats.tagged import Dialect, Grammar, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt

START, END = "<|im_start|>", "<|im_end|>"
THINK, THINK_CLOSE = "<think>", "</think>"
CALL, CALL_CLOSE = "<tool_call>", "</tool_call>"
RESPONSE, RESPONSE_CLOSE = "<tool_response>", "</tool_response>"

GRAMMAR: Final = Grammar(
    end=END,
    think=THINK,
    think_close=THINK_CLOSE,
    after={None: frozenset({CALL}), CALL: frozenset({CALL_CLOSE}), CALL_CLOSE: frozenset({CALL})},
    text_after=frozenset({CALL, CALL_CLOSE}),
    closers=frozenset({CALL_CLOSE}),
)

_CUT_CALL: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(.*)\Z', re.DOTALL
)

_ROLES: Final = ("system", "user", "assistant", "tool")


def _declaration(tools: Sequence[JsonObject]) -> Iterator[str]:
    """Yield what the system turn says of `tools`.

    One JSON object a line; the markers in it are control tokens.
    """
    yield "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    yield "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    yield from (f"\n{written(dict(tool))}" for tool in tools)
    yield "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    yield from (CALL, CALL_CLOSE, " XML tags:\n", CALL)
    yield '\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    yield CALL_CLOSE


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the rendered prompt, up to the model's turn."""
    one = tokenizer.id_of
    messages = prompt.messages
    if not messages:
        raise unsupported("there are no messages")
    yield from _system(prompt, tokenizer)
    query = _last_query(messages)
    for position, message in enumerate(messages):
        role = role_of(message, _ROLES)
        if role == "assistant":
            yield from _assistant(prompt, position, query, tokenizer)
        elif role == "tool":
            yield from _tool(messages, position, tokenizer)
        elif role == "user" or position > 0:
            yield from (one(START), f"{role}\n{content_of(message)}", one(END), "\n")
    yield from (one(START), "assistant\n")
    if not prompt.thinking:
        yield from (one(THINK), "\n\n", one(THINK_CLOSE), "\n\n")


def _system(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    one = tokenizer.id_of
    first = prompt.messages[0]
    said = content_of(first) if first.get("role") == "system" else None
    if not prompt.tools and said is None:
        return
    yield from (one(START), "system\n", said or "")
    if prompt.tools:
        yield "\n\n" if said is not None else ""
        marks = {CALL: one(CALL), CALL_CLOSE: one(CALL_CLOSE)}
        yield from (marks.get(piece, piece) for piece in _declaration(prompt.tools))
    yield from (one(END), "\n")


def _last_query(messages: Sequence[JsonObject]) -> int:
    """Return where the last real user message stands.

    Not a tool response in disguise; thinking after it is shown again.
    """
    queries = [
        position
        for position, message in enumerate(messages)
        if message.get("role") == "user"
        and not ((text := content_of(message)).startswith(RESPONSE) and text.endswith(RESPONSE_CLOSE))
    ]
    return queries[-1] if queries else len(messages) - 1


def _assistant(prompt: Prompt, position: int, query: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    one = tokenizer.id_of
    message = prompt.messages[position]
    content = content_of(message)
    reasoning = reasoning_of(message, content, THINK_CLOSE)
    yield from (one(START), "assistant\n")
    if position > query and (reasoning or position == len(prompt.messages) - 1):
        stripped = reasoning.strip("\n")
        yield from (one(THINK), f"\n{stripped}\n", one(THINK_CLOSE), "\n\n" + content.lstrip("\n"))
    else:
        yield content
    for number, (name, arguments, _) in enumerate(calls_of(message)):
        yield "\n" if content or number else ""
        yield from (one(CALL), f'\n{{"name": "{name}", "arguments": {arguments}}}\n', one(CALL_CLOSE))
    yield from (one(END), "\n")


def _tool(messages: Sequence[JsonObject], position: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield a tool's answer; several share one user turn."""
    one = tokenizer.id_of
    if position == 0 or messages[position - 1].get("role") != "tool":
        yield from (one(START), "user")
    yield from ("\n", one(RESPONSE), f"\n{content_of(messages[position])}\n", one(RESPONSE_CLOSE))
    if position + 1 == len(messages) or messages[position + 1].get("role") != "tool":
        yield from (one(END), "\n")


def _template_inputs(prompt: Prompt) -> tuple[Prompt, dict[str, Json]]:
    return prompt, {"enable_thinking": prompt.thinking}


def emitted_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:
    """Yield a section's calls, each a JSON object.

    Parsers leave out what is no such object.
    """
    for inside, whole in between(pieces, tokenizer.id_of(CALL), tokenizer.id_of(CALL_CLOSE)):
        text = text_of_pieces(inside)
        found = raw_members(text) if whole else None
        if found is not None and found.get("name", "").startswith('"'):
            yield EmittedCall(json.loads(found["name"]), found.get("parameters") or found.get("arguments", ""))
        elif not whole and (cut := _CUT_CALL.match(text)) is not None:
            yield EmittedCall(cut[1], cut[2], whole=False)


QWEN3: Final = Dialect(GRAMMAR, prompt_pieces, _template_inputs, Opener.MODEL, Opener.NOBODY, emitted_calls)


def load(name: str, tokenizer: Tokenizer) -> TaggedFormat:
    """Return Qwen3's layout on `tokenizer`, called `name`."""
    return TaggedFormat(name, tokenizer, QWEN3, load_template(tokenizer.directory))
