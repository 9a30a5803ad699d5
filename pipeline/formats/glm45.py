"""GLM-4.5's and GLM-4.6's layout: the model opens its thinking.

Guarantees: prompts are those of the models' own chat templates, with a line feed after each role's marker. When told
not to think, each question ends in `/nothink` and the prompt holds an empty thinking. Otherwise the model begins with a
line feed and `<think>`, or does not think. No API's text shows that line feed, so a proof from text needs a route that
is proven to begin thinking so. How answers end, and why parsed calls are refused, is GLM-5's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.format import Opener
from pipeline.formats.glm import (
    ASSISTANT,
    CALL,
    CALL_CLOSE,
    GRAMMAR,
    KEY,
    KEY_CLOSE,
    OBSERVATION,
    RESPONSE,
    RESPONSE_CLOSE,
    ROLES,
    SYSTEM,
    THINK,
    THINK_CLOSE,
    USER,
    VALUE,
    VALUE_CLOSE,
    emitted_calls,
    template_inputs,
    text_of,
)
from pipeline.formats.messages import calls_of, reasoning_of, role_of, unsupported, written
from pipeline.formats.pieces import Piece
from pipeline.formats.tagged import Dialect, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import JsonObject, Prompt

NO_THINK: Final = "/nothink"


def _declaration(tools: Sequence[JsonObject]) -> Iterator[str]:
    """Yield what the system turn says of `tools`.

    One JSON object a line; the markers in it are control tokens.
    """
    yield "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    yield "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    yield from (f"{written(dict(tool))}\n" for tool in tools)
    yield "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
    yield "format:\n"
    yield from (CALL, "{function-name}\n")
    for number in (1, 2):
        yield from (KEY, f"{{arg-key-{number}}}", KEY_CLOSE, "\n", VALUE, f"{{arg-value-{number}}}", VALUE_CLOSE, "\n")
    yield from ("...\n", CALL_CLOSE)


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the rendered prompt, up to the model's turn."""
    one = tokenizer.id_of
    if not prompt.messages:
        raise unsupported("there are no messages")
    yield from (one("[gMASK]"), one("<sop>"))
    if prompt.tools:
        marks = {name: one(name) for name in GRAMMAR.markers}
        yield one(SYSTEM)
        yield from (marks.get(piece, piece) for piece in _declaration(prompt.tools))
    questions = [position for position, message in enumerate(prompt.messages) if message.get("role") == "user"]
    for position, message in enumerate(prompt.messages):
        role = role_of(message, ROLES)
        if role == "assistant":
            yield from _assistant(message, tokenizer, shown=position > (questions[-1] if questions else -1))
        elif role == "tool":
            yield from _tool(prompt.messages, position, tokenizer)
        elif role == "user":
            yield from _question(message, tokenizer, thinking=prompt.thinking)
        else:
            yield from (one(SYSTEM), f"\n{text_of(message)}")
    yield one(ASSISTANT)
    if not prompt.thinking:
        yield from ("\n", one(THINK), one(THINK_CLOSE))


def _question(message: JsonObject, tokenizer: Tokenizer, *, thinking: bool) -> Iterator[Piece]:
    text = text_of(message)
    yield from (tokenizer.id_of(USER), f"\n{text}")
    if not thinking and not text.endswith(NO_THINK):
        yield tokenizer.id_of(NO_THINK)


def _assistant(message: JsonObject, tokenizer: Tokenizer, *, shown: bool) -> Iterator[Piece]:
    """Yield an earlier answer.

    Its thinking is `shown` only after the last question.
    """
    one = tokenizer.id_of
    content = text_of(message)
    reasoning = reasoning_of(message, content, THINK_CLOSE)
    yield from (one(ASSISTANT), "\n", one(THINK), reasoning.strip() if shown else "", one(THINK_CLOSE))
    if said := content.strip():
        yield f"\n{said}"
    for name, _, arguments in calls_of(message, as_text=False):
        yield from ("\n", one(CALL), f"{name}\n")
        for key, value in arguments.items():
            given = value if isinstance(value, str) else written(value)
            yield from (one(KEY), key, one(KEY_CLOSE), "\n", one(VALUE), given, one(VALUE_CLOSE), "\n")
        yield one(CALL_CLOSE)


def _tool(messages: Sequence[JsonObject], position: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield a tool's answer; several share a turn."""
    one = tokenizer.id_of
    if position == 0 or messages[position - 1].get("role") != "tool":
        yield one(OBSERVATION)
    yield from ("\n", one(RESPONSE), f"\n{text_of(messages[position])}\n", one(RESPONSE_CLOSE))


GLM45: Final = Dialect(
    replace(GRAMMAR, think_lead="\n"), prompt_pieces, template_inputs, Opener.MODEL, Opener.NOBODY, emitted_calls
)


def load(name: str, tokenizer: Tokenizer) -> TaggedFormat:
    """Return GLM-4.5's layout on `tokenizer`, called `name`."""
    return TaggedFormat(name, tokenizer, GLM45, load_template(tokenizer.directory))
