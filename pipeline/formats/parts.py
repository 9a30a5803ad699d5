"""A completion part by part, between its text and its ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.records import Ids, JsonObject, Prompt, Span
    from pipeline.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    """What a completion says.

    `reasoning` is None where the prompt closed the thinking (instant mode). `body` holds what follows the reasoning:
    text, and tool markers as control ids; no empty text and no two texts in a row. `ended` says that the end token
    was emitted.
    """

    reasoning: str | None
    think_closed: bool
    body: tuple[str | int, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Assembled:
    """Emitted ids of a completion, shape [n], and what each stretch of them is."""

    ids: Ids
    spans: tuple[Span, ...]


class Format(Protocol):
    """What is known of one target-model family's tokens."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def end_id(self) -> int: ...
    @property
    def think_close_id(self) -> int: ...
    def tool_markers(self) -> dict[str, int]: ...
    def render(self, prompt: Prompt) -> Ids: ...
    def special_text(self, prompt: Prompt) -> str | None: ...
    def declare_tools(self, tools: Sequence[JsonObject]) -> str: ...
    def assemble(self, parts: Parts) -> Assembled: ...
    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]: ...
    def parts(self, ids: Ids, *, thinking: bool) -> Parts: ...
    def parse(self, ids: Ids, *, thinking: bool) -> Parts: ...
