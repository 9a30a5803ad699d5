"""A completion part by part, between its text and its ids."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.records import Ids, JsonObject, Prompt, Span
    from pipeline.tokenizers import Tokenizer


class Opener(StrEnum):
    """Who opens the reasoning that a completion begins with.

    PROMPT: the first emitted token is reasoning already. MODEL: the model emits the opening control token, which no API
    text shows, or does not think. NOBODY: the completion begins with its content.
    """

    PROMPT = "prompt"
    MODEL = "model"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a completion says.

    `reasoning` is None where no thinking was opened (instant mode, a model that does not think). `body` holds what
    follows the reasoning: text, and tool markers as control ids; no empty text and no two texts in a row. `ended` says
    that the end token was emitted.
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
    def think_open_id(self) -> int: ...
    @property
    def think_close_id(self) -> int: ...
    def opener(self, *, thinking: bool) -> Opener: ...
    def tool_markers(self) -> dict[str, int]: ...
    def render(self, prompt: Prompt) -> Ids: ...
    def special_text(self, prompt: Prompt) -> str | None: ...
    def declare_tools(self, tools: Sequence[JsonObject]) -> str: ...
    def assemble(self, parts: Parts) -> Assembled: ...
    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]: ...
    def parts(self, ids: Ids, *, thinking: bool) -> Parts: ...
    def parse(self, ids: Ids, *, thinking: bool) -> Parts: ...


@runtime_checkable
class Switched(Protocol):
    """A format that a server renders only when it is told to: `chat_template_kwargs` of the request."""

    @property
    def template_switches(self) -> JsonObject: ...


def end_ids(fmt: Format) -> frozenset[int]:
    """The ids that end a completion: one, or two where the next role's marker ends it (`end_after_calls_id`)."""
    return frozenset({fmt.end_id, ending(fmt, (fmt.end_id,))})


def ending(fmt: Format, body: Sequence[str | int]) -> int:
    """The id that ends a completion with this body, in which every control id is of a tool call."""
    called = any(isinstance(piece, int) for piece in body)
    return int(getattr(fmt, "end_after_calls_id", fmt.end_id)) if called else fmt.end_id
