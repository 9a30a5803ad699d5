"""DeepSeek's layout, R1 and V3.1: turns between wide bars.

Guarantees: prompts are those of the models' own chat templates, with their quirks: system messages are joined at the
front, earlier thinking is never shown, and R1 opens a section of calls once in a conversation. Refuses tools (neither
template declares them) and prompts that end in a tool's answer, after which neither says who speaks. Parsed calls are
refused: their ids are invented, and R1's arguments stand in a fence that parsers cut away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.emitted_calls import EmittedCall, between, text_of_pieces
from pipeline.formats.format import Opener
from pipeline.formats.messages import calls_of, content_of, role_of, unsupported
from pipeline.formats.pieces import Piece
from pipeline.formats.tagged import Dialect, Grammar, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, THINK_CLOSE = "<think>", "</think>"
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
OUTPUTS, OUTPUTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
OUTPUT, OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"

GRAMMAR: Final = Grammar(
    end=END,
    think=THINK,
    think_close=THINK_CLOSE,
    after={
        None: frozenset({CALLS}),
        CALLS: frozenset({CALL}),
        CALL: frozenset({SEPARATOR}),
        SEPARATOR: frozenset({CALL_END}),
        CALL_END: frozenset({CALL, CALLS_END}),
        CALLS_END: frozenset(),
    },
    text_after=frozenset({CALL, SEPARATOR, CALL_END, CALLS_END}),
    closers=frozenset({CALLS_END}),
)

_ROLES: Final = ("system", "user", "assistant", "tool")


@dataclass(slots=True)
class _Turns:
    """What a template remembers from message to message.

    R1 never forgets `called` and `answered`.
    """

    after_user: bool = False
    after_tool: bool = False
    called: bool = False
    answered: bool = False


def _front(prompt: Prompt) -> str:
    """Return the system messages, wherever they stand."""
    return "\n\n".join(content_of(message) for message in prompt.messages if message.get("role") == "system")


def _checked(prompt: Prompt) -> None:
    if prompt.tools:
        raise unsupported("the template declares no tools", field="tools")
    if not prompt.messages or prompt.messages[-1].get("role") != "user":
        raise unsupported("the last message is not the user's, and the template does not say who goes on")
    for message in prompt.messages:
        role_of(message, _ROLES)
        if "tool_calls" in message and not message["tool_calls"]:
            raise unsupported("tool_calls is there and empty, which the template prints as a section without calls")
        if message.get("prefix") or (message.get("role") == "assistant" and THINK_CLOSE in content_of(message)):
            raise unsupported("an answer holds its thinking, or is to be continued")


def r1_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield R1's prompt: it always thinks, after a line feed."""
    _checked(prompt)
    if not prompt.thinking:
        raise unsupported("R1 always thinks")
    one, turns = tokenizer.id_of, _Turns()
    yield from (one(BEGIN), _front(prompt))
    for message in prompt.messages:
        role = message.get("role")
        if role == "user":
            turns.after_tool = False
            yield from (one(USER), content_of(message))
        elif role == "tool":
            yield from ([] if turns.answered else [one(OUTPUTS)])
            yield from (one(OUTPUT), content_of(message), one(OUTPUT_END))
            turns.after_tool = turns.answered = True
        elif role == "assistant":
            yield from _r1_answer(message, turns, tokenizer)
    yield from (one(ASSISTANT), one(THINK), "\n")


def _r1_answer(message: JsonObject, turns: _Turns, tokenizer: Tokenizer) -> Iterator[Piece]:
    one = tokenizer.id_of
    calls = list(calls_of(message))
    if not calls:
        yield from (one(OUTPUTS_END if turns.after_tool else ASSISTANT), content_of(message), one(END))
        turns.after_tool = False
        return
    turns.after_tool = False
    for name, arguments, _ in calls:
        opened = ("\n",) if turns.called else (one(ASSISTANT), content_of(message), one(CALLS))
        yield from (*opened, one(CALL), "function", one(SEPARATOR), f"{name}\n```json\n{arguments}\n```", one(CALL_END))
        turns.called = True
    yield from (one(CALLS_END), one(END))


def v31_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield V3.1's prompt.

    `<think>` opens the thinking, `</think>` alone says that there is none.
    """
    _checked(prompt)
    one, turns = tokenizer.id_of, _Turns()
    yield from (one(BEGIN), _front(prompt))
    for message in prompt.messages:
        role = message.get("role")
        if role == "user":
            turns.after_user = True
            yield from (one(USER), content_of(message))
        elif role == "tool":
            turns.after_user = False
            yield from (one(OUTPUT), content_of(message), one(OUTPUT_END))
        elif role == "assistant":
            yield from (one(ASSISTANT), one(THINK_CLOSE)) if turns.after_user else ()
            turns.after_user = False
            yield from _v31_answer(message, tokenizer)
    yield from (one(ASSISTANT), one(THINK if prompt.thinking else THINK_CLOSE))


def _v31_answer(message: JsonObject, tokenizer: Tokenizer) -> Iterator[Piece]:
    one = tokenizer.id_of
    yield content_of(message)
    calls = list(calls_of(message))
    for number, (name, arguments, _) in enumerate(calls):
        yield from () if number else (one(CALLS),)
        yield from (one(CALL), name, one(SEPARATOR), arguments, one(CALL_END))
    yield from (one(CALLS_END), one(END)) if calls else (one(END),)


def _template_inputs(prompt: Prompt) -> tuple[Prompt, dict[str, Json]]:
    return prompt, {"bos_token": BEGIN}


def v31_emitted_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:
    """Yield the calls of a tool section: name and arguments."""
    one = tokenizer.id_of
    for inside, whole in between(pieces, one(CALL), one(CALL_END)):
        if one(SEPARATOR) in inside:
            at = inside.index(one(SEPARATOR))
            yield EmittedCall(text_of_pieces(inside[:at]).strip(), text_of_pieces(inside[at + 1 :]), whole=whole)


def r1_emitted_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:
    """Yield R1's calls: name and fenced arguments in one text."""
    for call in v31_emitted_calls(pieces, tokenizer):
        name, _, fenced = call.arguments.partition("\n```json\n")
        yield EmittedCall(name.strip(), fenced.rstrip().removesuffix("```") if call.whole else fenced, whole=call.whole)


R1: Final = Dialect(GRAMMAR, r1_pieces, _template_inputs, Opener.PROMPT, Opener.PROMPT, r1_emitted_calls)
V31: Final = Dialect(GRAMMAR, v31_pieces, _template_inputs, Opener.PROMPT, Opener.NOBODY, v31_emitted_calls)


def _load(name: str, tokenizer: Tokenizer, dialect: Dialect) -> TaggedFormat:
    return TaggedFormat(name, tokenizer, dialect, load_template(tokenizer.directory))


load_r1 = partial(_load, dialect=R1)
load_v31 = partial(_load, dialect=V31)
