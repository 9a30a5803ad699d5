"""The base class of all formats, and a completion's parts.

Guarantees: a format never guesses. What its layout cannot express is a RefusedError.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from pipeline.records import Reason, RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.formats.emitted_calls import EmittedCall
    from pipeline.formats.tokenizer import Tokenizer
    from pipeline.records import Ids, Json, JsonObject, Prompt, Span, ToolCall


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
    follows the reasoning: text, and tool markers as control ids. It has no empty text and no two texts in a row.
    `ended` says that the end token was emitted.
    """

    reasoning: str | None
    think_closed: bool
    body: tuple[str | int, ...]
    ended: bool

    @property
    def has_markers(self) -> bool:
        """Whether the body holds tool markers."""
        return any(isinstance(piece, int) for piece in self.body)


@dataclass(frozen=True, slots=True)
class Assembled:
    """Emitted ids, shape [n], and the kind of each stretch."""

    ids: Ids
    spans: tuple[Span, ...]


class Format(ABC):
    """What is known of one model family's tokens.

    A family inherits from it: it defines the abstract members, and overrides a default where its layout differs.
    Frozen dataclasses with slots may inherit.
    """

    __slots__ = ()

    name: str
    tokenizer: Tokenizer

    is_headed: ClassVar[bool] = False
    """Whether every text stands behind a header; such a format is a `HeadedFormat`."""
    is_dated: ClassVar[bool] = False
    """Whether prompts say what no request asks for and no count shows, such as the day of rendering.

    Such a format overrides `as_served` and `as_settled`. A plain attribute, because every row reads it.
    """
    calls_as_text: ClassVar[bool] = False
    """Whether a call is its id and its arguments as text, in a section between control tokens.

    Only then can parsed calls be put back (`structured_body`), and only of such sections are engines known to leave
    one out of the text.
    """

    # Control tokens

    @property
    @abstractmethod
    def end_id(self) -> int:
        """The id that ends a completion."""

    @property
    def end_after_calls_id(self) -> int:
        """The id that ends a completion with tool calls."""
        return self.end_id

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a completion.

        There are two where the next role's marker ends it.
        """
        return frozenset({self.end_id, self.end_after_calls_id})

    def end_id_for(self, body: Sequence[str | int]) -> int:
        """Return the id that ends a completion with this body.

        Every control id of the body must belong to a tool call.
        """
        return self.end_after_calls_id if any(isinstance(piece, int) for piece in body) else self.end_id

    @property
    @abstractmethod
    def think_open_id(self) -> int:
        """The id that opens the reasoning where the model does."""

    @property
    @abstractmethod
    def think_close_id(self) -> int:
        """The id that ends the reasoning."""

    @property
    def think_lead_ids(self) -> Ids:
        """The ids that the model emits before `think_open_id`."""
        return ()

    @property
    def think_tail_ids(self) -> Ids:
        """The ids between `think_close_id` and the content."""
        return ()

    @property
    def opening_ids(self) -> Ids:
        """All ids with which the model opens its reasoning."""
        return (*self.think_lead_ids, self.think_open_id)

    @property
    def closing_ids(self) -> Ids:
        """All ids between the reasoning and the content."""
        return (self.think_close_id, *self.think_tail_ids)

    @abstractmethod
    def opener(self, *, thinking: bool) -> Opener:
        """Return who opens the reasoning in either mode."""

    def opened_with(self, ids: Ids, *, thinking: bool) -> Ids:
        """Return the ids with which an answer opened its reasoning.

        Empty where the model did not open it.
        """
        begin = self.opening_ids if self.opener(thinking=thinking) is Opener.MODEL else ()
        return begin if ids[: len(begin)] == begin else ()

    def hidden_count(self, opener: Opener, parts: Parts) -> int:
        """Count the ids around the reasoning that no text shows.

        Each side counts as one control token; in a headed format, as its whole header.
        """
        opened = opener is Opener.MODEL and parts.reasoning is not None
        if not self.is_headed:
            return int(parts.think_closed) + int(opened)
        return len(self.closing_ids) * parts.think_closed + len(self.opening_ids) * opened

    # Tool calls

    @abstractmethod
    def tool_markers(self) -> dict[str, int]:
        """Return the ids of the tool markers by name."""

    @property
    def tag_names(self) -> frozenset[str]:
        """The names of the text tags around the tool marker.

        Empty where markers are whole tags. Where there is one marker in every tag, it is a special token, which an
        API's text may lack.
        """
        return frozenset()

    def split_markers(self, text: str) -> tuple[str | int, ...]:
        """Return the text with its tool markers as ids."""
        ids = self.tool_markers()
        first_chars, pattern = _marker_search(tuple(ids))
        if not any(char in text for char in first_chars):
            return (text,)
        return tuple(ids.get(piece, piece) for piece in pattern.split(text) if piece)

    def structured_body(self, content: str, calls: Sequence[ToolCall]) -> tuple[str | int, ...] | None:  # noqa: ARG002
        """Return the body from which parsed calls were taken.

        Ids and arguments are written as they came. None where parsed calls do not show how the model wrote them.
        """
        return None

    @abstractmethod
    def calls_in(self, ids: Ids) -> list[EmittedCall] | None:
        """Return each call that a parser finds in the ids.

        None where parsers that read text differ in what they make of them. Bytes that are not UTF-8 become U+FFFD.
        """

    # Prompts

    @abstractmethod
    def render(self, prompt: Prompt) -> Ids:
        """Return the prompt's ids, shape [n], as engines serve them.

        RefusedError on what the layout cannot express.
        """

    @abstractmethod
    def special_text(self, prompt: Prompt) -> str | None:
        """Return the first control token that the prompt's text spells."""

    @abstractmethod
    def declare_tools(self, tools: Sequence[JsonObject]) -> str:
        """Return the text that declares tools in a message.

        RefusedError where tools cannot be declared so.
        """

    def ambiguity(self, prompt: Prompt) -> str | None:  # noqa: ARG002
        """Return what engines write differently at equal length.

        Of the rendered prompt: only returned prompt ids show which text was served. None where nothing is ambiguous.
        """
        return None

    @property
    def template_switches(self) -> JsonObject:
        """The `chat_template_kwargs` with which a server renders this format."""
        return {}

    def as_served(self, prompt_ids: Ids) -> Format:  # noqa: ARG002
        """Return the format that renders what served prompt ids say."""
        return self

    def as_settled(self, settings: Json) -> Format:  # noqa: ARG002
        """Return the format for what the route provably says."""
        return self

    # Completions

    @abstractmethod
    def assemble(self, parts: Parts) -> Assembled:
        """Return ids and spans of a completion.

        RefusedError(LAYOUT_INVALID) where the layout cannot express `parts`.
        """

    @abstractmethod
    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]:
        """Return the spans of emitted ids, canonical or not.

        RefusedError(LAYOUT_INVALID) outside the layout.
        """

    @abstractmethod
    def parts(self, ids: Ids, *, thinking: bool) -> Parts:
        """Return the text of emitted ids, canonical or not.

        RefusedError outside the layout, or where the bytes are not UTF-8.
        """

    def parse(self, ids: Ids, *, thinking: bool) -> Parts:
        """Return the parts of canonical ids: the inverse of `assemble`.

        RefusedError(NOT_CANONICAL) where `assemble` would not give `ids` back.
        """
        parts = self.parts(ids, thinking=thinking)
        again = self.assemble(parts).ids
        if again != ids:
            pairs = enumerate(zip(ids, again, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(again)))
            message = f"ids differ from their canonical form at token {at}"
            raise RefusedError(Reason.NOT_CANONICAL, message, token_position=at)
        return parts


class HeadedFormat(Format):
    """A format whose texts stand behind hidden headers."""

    __slots__ = ()

    is_headed: ClassVar[bool] = True

    @property
    @abstractmethod
    def think_tail_ids(self) -> Ids:
        """The header between reasoning and content."""

    @abstractmethod
    def texts_in(self, ids: Ids) -> tuple[list[str], list[str]]:
        """Return the texts of reasoning and of content messages.

        In order, empty texts included. Bytes that are not UTF-8 become U+FFFD.
        """


@cache
def _marker_search(names: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the markers' first characters, and a pattern.

    The first characters are a quick test: most texts hold none of them.
    """
    alternatives = "|".join(re.escape(name) for name in names)
    return frozenset(name[0] for name in names), re.compile(f"({alternatives})")
