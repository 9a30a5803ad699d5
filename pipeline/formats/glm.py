"""GLM-5's and GLM-4.7's layout: turns without an end.

Guarantees: prompts are those of the models' own chat templates. A turn ends where the next role's marker stands:
`<|user|>` after an answer, `<|observation|>` after tool calls. No text shows which of them was emitted, so a proof from
text needs a route that is proven to end answers so. Parsed calls are refused: the arguments have no types in the text,
and parsers guess them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.emitted_calls import EmittedCall, between
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
from pipeline.formats.tagged import Dialect, Grammar, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt

SYSTEM, USER, ASSISTANT, OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
THINK, THINK_CLOSE = "<think>", "</think>"
CALL, CALL_CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_CLOSE, VALUE, VALUE_CLOSE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
RESPONSE, RESPONSE_CLOSE = "<tool_response>", "</tool_response>"

GRAMMAR: Final = Grammar(
    end=USER,
    end_after_calls=OBSERVATION,
    think=THINK,
    think_close=THINK_CLOSE,
    after={
        None: frozenset({CALL}),
        CALL: frozenset({KEY, CALL_CLOSE}),
        KEY: frozenset({KEY_CLOSE}),
        KEY_CLOSE: frozenset({VALUE}),
        VALUE: frozenset({VALUE_CLOSE}),
        VALUE_CLOSE: frozenset({KEY, CALL_CLOSE}),
        CALL_CLOSE: frozenset({CALL}),
    },
    text_after=frozenset({CALL, KEY, KEY_CLOSE, VALUE, VALUE_CLOSE, CALL_CLOSE}),
    closers=frozenset({CALL_CLOSE}),
)

ROLES: Final = ("system", "user", "assistant", "tool")


def _declaration(tools: Sequence[JsonObject]) -> Iterator[str]:
    """Yield what the system turn says of `tools`.

    One JSON object a line; the markers in it are control tokens.
    """
    yield "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    yield "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    yield from (f"{written(dict(tool))}\n" for tool in tools)
    yield "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
    yield "format:\n"
    yield from (CALL, "{function-name}")
    for number in (1, 2):
        yield from (KEY, f"{{arg-key-{number}}}", KEY_CLOSE, VALUE, f"{{arg-value-{number}}}", VALUE_CLOSE)
    yield from ("...", CALL_CLOSE)


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
        else:
            yield from (one(USER if role == "user" else SYSTEM), text_of(message))
    yield from (one(ASSISTANT), one(THINK if prompt.thinking else THINK_CLOSE))


def text_of(message: JsonObject) -> str:
    """Return the message's text; null would be printed as `None`."""
    if message.get("content") is None:
        raise unsupported("content is null, which this template prints as None")
    return content_of(message)


def _assistant(message: JsonObject, tokenizer: Tokenizer, *, shown: bool) -> Iterator[Piece]:
    """Yield an earlier answer.

    Its thinking is `shown` only after the last question.
    """
    one = tokenizer.id_of
    content = text_of(message)
    reasoning = reasoning_of(message, content, THINK_CLOSE)
    yield one(ASSISTANT)
    if shown and reasoning:
        yield from (one(THINK), reasoning.strip())
    yield from (one(THINK_CLOSE), content.strip())
    for name, _, arguments in calls_of(message, as_text=False):
        yield from (one(CALL), name)
        for key, value in arguments.items():
            said = value if isinstance(value, str) else written(value)
            yield from (one(KEY), key, one(KEY_CLOSE), one(VALUE), said, one(VALUE_CLOSE))
        yield one(CALL_CLOSE)


def _tool(messages: Sequence[JsonObject], position: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield a tool's answer; several share a turn."""
    one = tokenizer.id_of
    if position == 0 or messages[position - 1].get("role") != "tool":
        yield one(OBSERVATION)
    yield from (one(RESPONSE), text_of(messages[position]), one(RESPONSE_CLOSE))


def template_inputs(prompt: Prompt) -> tuple[Prompt, dict[str, Json]]:
    """Return the prompt and variables that the template is given."""
    return with_parsed_arguments(prompt), {"enable_thinking": prompt.thinking}


def emitted_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:
    """Yield a section's calls: a name, keys and values."""
    one = tokenizer.id_of
    marks = {one(mark): mark for mark in (KEY, KEY_CLOSE, VALUE, VALUE_CLOSE)}
    for inside, whole in between(pieces, one(CALL), one(CALL_CLOSE)):
        if whole:
            name, *rest = (*inside, "") if isinstance(next(iter(inside), None), str) else ("", *inside)
            yield EmittedCall(str(name).strip(), parameters=tuple(_parameters(rest, marks)))


def _parameters(pieces: Sequence[Piece], marks: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Yield each key with the value that follows it."""
    said: dict[str, str] = {}
    last = ""
    for piece in pieces:
        if isinstance(piece, str):
            said[last] = said.get(last, "") + piece
            continue
        last = marks[piece]
        if last == KEY:
            said = {}
        elif last == VALUE_CLOSE and VALUE_CLOSE not in said:
            if not said.get(KEY_CLOSE, "").strip():
                yield said.get(KEY, ""), said.get(VALUE, "")
            said = {}


GLM5: Final = Dialect(GRAMMAR, prompt_pieces, template_inputs, Opener.PROMPT, Opener.NOBODY, emitted_calls)


def load(name: str, tokenizer: Tokenizer) -> TaggedFormat:
    """Return GLM-5's layout on `tokenizer`, called `name`."""
    return TaggedFormat(name, tokenizer, GLM5, load_template(tokenizer.directory))
