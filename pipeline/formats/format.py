"""A completion part by part, between its text and its ids."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.formats.tokenizer import Tokenizer
    from pipeline.records import Ids, Json, JsonObject, Prompt, Span


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


@runtime_checkable
class Dated(Protocol):
    """A format whose prompts say what no request asks for and no count tells, as the day on which they were rendered.

    `as_served` is the format that renders what served prompt ids say, `as_settled` what a route is proven to say.
    """

    def as_served(self, prompt_ids: Ids) -> Format: ...
    def as_settled(self, settings: Json) -> Format: ...


def is_dated(fmt: Format) -> TypeGuard[Dated]:
    """Whether it is `Dated`, asked of every row: a protocol's own answer takes as long as a prompt's rendering."""
    return _is_dated(type(fmt))


@cache
def _is_dated(kind: type) -> bool:
    return issubclass(kind, Dated)


@runtime_checkable
class Headed(Protocol):
    """A format whose every text stands behind a header that tells what it is, and that no API text shows.

    `think_tail_ids` is the header between the end of the reasoning and the content, `texts_in` gives the texts of all
    messages of reasoning and of content, `calls_in` recipient and text of each call.
    """

    @property
    def think_tail_ids(self) -> Ids: ...
    def texts_in(self, ids: Ids) -> tuple[list[str], list[str]]: ...
    def calls_in(self, ids: Ids) -> list[tuple[str, str]]: ...


def opening(fmt: Format) -> Ids:
    """The ids with which the model opens its reasoning: in some families text stands before (`think_lead_ids`)."""
    return (*getattr(fmt, "think_lead_ids", ()), fmt.think_open_id)


def opened(fmt: Format, ids: Ids, *, thinking: bool) -> Ids:
    """The ids of an answer with which its model opened the reasoning; none where it did not."""
    begin = opening(fmt) if fmt.opener(thinking=thinking) is Opener.MODEL else ()
    return begin if ids[: len(begin)] == begin else ()


def closing(fmt: Format) -> Ids:
    """The ids between reasoning and content: in some families a header stands behind the first (`think_tail_ids`)."""
    return (fmt.think_close_id, *getattr(fmt, "think_tail_ids", ()))


def is_headed(fmt: Format) -> bool:
    """Whether it is `Headed`, asked often."""
    return bool(getattr(fmt, "think_tail_ids", ()))


def hidden(fmt: Format, opener: Opener, parts: Parts) -> int:
    """How many ids round the reasoning no text shows: a control token each, or the headers that they are part of."""
    opened = opener is Opener.MODEL and parts.reasoning is not None
    if not is_headed(fmt):
        return int(parts.think_closed) + int(opened)
    return len(closing(fmt)) * parts.think_closed + len(opening(fmt)) * opened


def tag_names(fmt: Format) -> frozenset[str]:
    """The tags, as text, in which the family's one tool marker stands: a special token, which texts may lack."""
    return getattr(fmt, "tag_names", frozenset())


def untold(fmt: Format, prompt: Prompt) -> str | None:
    """What of a rendered prompt engines write in several ways of one length, so that ids alone tell which; or None."""
    tell = getattr(fmt, "untold", None)
    return tell(prompt) if tell else None


def end_ids(fmt: Format) -> frozenset[int]:
    """The ids that end a completion: one, or two where the next role's marker ends it (`end_after_calls_id`)."""
    return frozenset({fmt.end_id, _end_after_calls(fmt)})


def ending(fmt: Format, body: Sequence[str | int]) -> int:
    """The id that ends a completion with this body, in which every control id is of a tool call."""
    return _end_after_calls(fmt) if any(isinstance(piece, int) for piece in body) else fmt.end_id


def _end_after_calls(fmt: Format) -> int:
    return int(getattr(fmt, "end_after_calls_id", fmt.end_id))
