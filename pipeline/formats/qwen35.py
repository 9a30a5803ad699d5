"""Qwen3.5's layout: Qwen3's turns, calls as tagged text.

Guarantees: prompts are those of Qwen3.5's own chat template, which trims what it prints. The prompt opens the thinking,
or holds an empty one. `<function=…>` and `<parameter=…>` are text: the grammar of control tokens is Qwen3's. Qwen3.6
has the same vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.emitted_calls import EmittedCall, between, text_of_pieces
from pipeline.formats.format import Opener
from pipeline.formats.messages import (
    calls_of,
    content_of,
    reasoning_of,
    role_of,
    unsupported,
    with_parsed_arguments,
    written,
)
from pipeline.formats.pieces import Piece
from pipeline.formats.qwen import (
    CALL,
    CALL_CLOSE,
    END,
    GRAMMAR,
    RESPONSE,
    RESPONSE_CLOSE,
    START,
    THINK,
    THINK_CLOSE,
)
from pipeline.formats.tagged import Dialect, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt

_CALL: Final = re.compile(r"<function=([^>]*)>(.*)</function>", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>]*)>(.*?)</parameter>", re.DOTALL)

_ROLES: Final = ("system", "user", "assistant", "tool")
_FORMAT: Final = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n",
    CALL,
    (
        "\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
        "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
        "</parameter>\n</function>\n"
    ),
    CALL_CLOSE,
    (
        "\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner "
        "<function=...></function> block must be nested within "
    ),
    CALL,
    CALL_CLOSE,
    (
        " XML tags\n- Required parameters MUST be specified\n- You may provide optional reasoning for your function "
        "call in natural language BEFORE the function call, but NOT after\n- If there is no function call available, "
        "answer the question like normal with your current knowledge and do not tell the user about function calls\n"
        "</IMPORTANT>"
    ),
)
"""What follows the declared tools; the markers in it are control tokens."""


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the rendered prompt, up to the model's turn."""
    one = tokenizer.id_of
    query = _last_query(prompt.messages)
    yield from _system(prompt, tokenizer)
    for position, message in enumerate(prompt.messages):
        role = role_of(message, _ROLES)
        if role == "assistant":
            yield from _assistant(message, tokenizer, shown=position > query)
        elif role == "tool":
            yield from _tool(prompt.messages, position, tokenizer)
        elif role == "user":
            yield from (one(START), f"user\n{content_of(message).strip()}", one(END), "\n")
        elif position > 0:
            raise unsupported("a system message stands after the first message")
    yield from (one(START), "assistant\n", one(THINK), "\n")
    if not prompt.thinking:
        yield from ("\n", one(THINK_CLOSE), "\n\n")


def _last_query(messages: Sequence[JsonObject]) -> int:
    """Return where the last real user message stands.

    Not a tool response in disguise; thinking after it is shown again.
    """
    if not messages or messages[0].get("role") == "tool":
        raise unsupported("the first message is a tool's, or there is none")
    texts = {n: content_of(message).strip() for n, message in enumerate(messages) if message.get("role") == "user"}
    queries = [n for n, text in texts.items() if not (text.startswith(RESPONSE) and text.endswith(RESPONSE_CLOSE))]
    if not queries:
        raise unsupported("no message asks anything")
    return queries[-1]


def _system(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    one = tokenizer.id_of
    first = prompt.messages[0]
    said = content_of(first).strip() if first.get("role") == "system" else None
    if prompt.tools:
        marks = {CALL: one(CALL), CALL_CLOSE: one(CALL_CLOSE)}
        yield from (one(START), "system\n# Tools\n\nYou have access to the following functions:\n\n<tools>")
        yield from (f"\n{written(dict(tool))}" for tool in prompt.tools)
        yield from (marks.get(piece, piece) for piece in _FORMAT)
        yield from (f"\n\n{said}" if said else "", one(END), "\n")
    elif said is not None:
        yield from (one(START), f"system\n{said}", one(END), "\n")


def _assistant(message: JsonObject, tokenizer: Tokenizer, *, shown: bool) -> Iterator[Piece]:
    one = tokenizer.id_of
    content = content_of(message).strip()
    reasoning = reasoning_of(message, content, THINK_CLOSE).strip()
    yield from (one(START), "assistant\n")
    if shown:
        yield from (one(THINK), f"\n{reasoning}\n", one(THINK_CLOSE), "\n\n")
    yield content
    for number, (name, _, arguments) in enumerate(calls_of(message, as_text=False)):
        yield "\n" if number else "\n\n" if content else ""
        given = "".join(f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in arguments.items())
        yield from (one(CALL), f"\n<function={name}>\n{given}</function>\n", one(CALL_CLOSE))
    yield from (one(END), "\n")


def _value(value: Json) -> str:
    """Return a value as the template prints it.

    Objects and lists as JSON, all else as Python writes it: `True`, `None`.
    """
    return written(value) if isinstance(value, dict | list) else str(value)


def _tool(messages: Sequence[JsonObject], position: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield a tool's answer; several share one user turn."""
    one = tokenizer.id_of
    if messages[position - 1].get("role") != "tool":
        yield from (one(START), "user")
    yield from ("\n", one(RESPONSE), f"\n{content_of(messages[position]).strip()}\n", one(RESPONSE_CLOSE))
    if position + 1 == len(messages) or messages[position + 1].get("role") != "tool":
        yield from (one(END), "\n")


def _template_inputs(prompt: Prompt) -> tuple[Prompt, dict[str, Json]]:
    return with_parsed_arguments(prompt), {"enable_thinking": prompt.thinking}


def emitted_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:
    """Yield a section's calls, each a tagged text."""
    for inside, whole in between(pieces, tokenizer.id_of(CALL), tokenizer.id_of(CALL_CLOSE)):
        if whole and (found := _CALL.search(text_of_pieces(inside))) is not None:
            yield EmittedCall(found[1].strip(), parameters=tuple(_PARAMETER.findall(found[2])))


QWEN35: Final = Dialect(GRAMMAR, prompt_pieces, _template_inputs, Opener.PROMPT, Opener.NOBODY, emitted_calls)


def load(name: str, tokenizer: Tokenizer) -> TaggedFormat:
    """Return Qwen3.5's layout on `tokenizer`, called `name`."""
    return TaggedFormat(name, tokenizer, QWEN35, load_template(tokenizer.directory))
