"""SmolLM2's layout: plain ChatML, without thinking or tools.

Guarantees: prompts are those of SmolLM2's own chat template, with its system turn where none is given. Refused is what
that template leaves out silently: tools, calls and earlier reasoning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.format import Opener
from pipeline.formats.messages import content_of, role_of, unsupported
from pipeline.formats.pieces import Piece
from pipeline.formats.tagged import Dialect, Grammar, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, Prompt

START, END = "<|im_start|>", "<|im_end|>"
NEVER = "<|endoftext|>"
"""Stands for the tags of thinking, which this family lacks: no answer may hold it."""
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the template says where a prompt has no system message."""

GRAMMAR: Final = Grammar(end=END, think=NEVER, think_close=NEVER, after={}, text_after=frozenset(), closers=frozenset())

_ROLES: Final = ("system", "user", "assistant")
_LEFT_OUT: Final = ("tool_calls", "reasoning_content", "reasoning")


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the rendered prompt, up to the model's turn."""
    start, end = tokenizer.id_of(START), tokenizer.id_of(END)
    if prompt.tools:
        raise unsupported("this family knows no tools", field="tools")
    if not prompt.messages:
        raise unsupported("there are no messages")
    if prompt.messages[0].get("role") != "system":
        yield from (start, f"system\n{SYSTEM}", end, "\n")
    for message in prompt.messages:
        role = role_of(message, _ROLES)
        if left_out := next((name for name in _LEFT_OUT if message.get(name)), None):
            raise unsupported(f"a message has {left_out}, and the template leaves it out")
        yield from (start, f"{role}\n{content_of(message)}", end, "\n")
    yield from (start, "assistant\n")


def _template_inputs(prompt: Prompt) -> tuple[Prompt, dict[str, Json]]:
    return prompt, {}


SMOLLM2: Final = Dialect(GRAMMAR, prompt_pieces, _template_inputs, Opener.NOBODY, Opener.NOBODY)


def load_smollm2(name: str, tokenizer: Tokenizer) -> TaggedFormat:
    """Return SmolLM2's layout on `tokenizer`, called `name`."""
    return TaggedFormat(name, tokenizer, SMOLLM2, load_template(tokenizer.directory))
