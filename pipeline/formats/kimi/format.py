"""Kimi's layout, K2 to K2.6, both ways.

Guarantees: control tokens are appended by id and text is encoded apart, segment by segment; `parse` and `assemble` are
each other's inverse on what the layout can express. Refuses everything else: images, control tokens where the layout
has none, ids that are not what the tokenizer makes of their own text.

A completion is `[[<think>] reasoning </think>] content [tool section] [text] <|im_end|>`. The prompt has already opened
`<think>` (K2.5, K2.6, thinking), the model opens it (K2-Thinking), or nothing thinks (K2). Sources: Kimi's chat
templates and Moonshot's tool-calling guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Final

from pipeline.formats.chat_template import ChatTemplate, load_template
from pipeline.formats.emitted_calls import EmittedCall
from pipeline.formats.format import Assembled, Format, Opener, Parts
from pipeline.formats.kimi.grammar import assembled, pieces_of, spans_of, text_of
from pipeline.formats.kimi.prompt import prompt_pieces as message_pieces
from pipeline.formats.kimi.releases import K25, Release, as_templated, declare_tools, sorted_tools
from pipeline.formats.kimi.tokens import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    END,
    SECTION_BEGIN,
    SECTION_END,
    THINK,
    THINK_CLOSE,
    TOOL_MARKERS,
)
from pipeline.formats.pieces import Piece, encode_pieces
from pipeline.formats.tokenizer import RUN_CHARS, Tokenizer, prompt_pieces
from pipeline.records import Ids, Json, JsonObject, Prompt, Reason, RefusedError, Span, SpanKind, ToolCall

__all__ = [
    "ARGUMENT_BEGIN",
    "CALL_BEGIN",
    "CALL_END",
    "END",
    "SECTION_BEGIN",
    "SECTION_END",
    "THINK",
    "THINK_CLOSE",
    "TOOL_MARKERS",
    "KimiFormat",
    "declare_tools",
    "load",
]

_CONTROL_CHARS: Final = 40
"""No control token's name is longer, so a shorter prompt cannot reach the run that engines cut at."""

_CALL: Final = re.compile(
    re.escape(CALL_BEGIN) + r"(.*?)" + re.escape(ARGUMENT_BEGIN) + r"(.*?)" + re.escape(CALL_END), re.DOTALL
)
_CUT_CALL: Final = re.compile(
    re.escape(CALL_BEGIN) + r"(.*?)" + re.escape(ARGUMENT_BEGIN) + rf"((?:(?!{re.escape(CALL_END)}).)*)\Z", re.DOTALL
)

_THINKING: Final = (SpanKind.THINK_OPEN, SpanKind.REASONING, SpanKind.THINK_CLOSE)
_THINK_CLOSE_AT: Final = 23
"""Where `</think>` stands among the control tokens; K2's own vocabulary reserves the place without naming it."""


@dataclass(frozen=True, slots=True)
class KimiFormat(Format):
    """One release's layout on one tokenizer.

    `template` is the model's own chat template, where its directory holds one.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    release: Release = K25

    calls_as_text: ClassVar[bool] = True

    @property
    def end_id(self) -> int:
        return self.tokenizer.id_of(END)

    @property
    def template_switches(self) -> JsonObject:
        return {"preserve_thinking": True} if self.release.preserves_thinking else {}

    @property
    def think_open_id(self) -> int:
        return self.tokenizer.id_of(THINK)

    @property
    def think_close_id(self) -> int:
        if self.release.opener is Opener.NOBODY:
            return self.tokenizer.base_size + _THINK_CLOSE_AT
        return self.tokenizer.id_of(THINK_CLOSE)

    def opener(self, *, thinking: bool) -> Opener:
        """Return who opens the reasoning.

        Thinking can be turned off only where the prompt opens it.
        """
        return self.release.opener if thinking or self.release.opener is Opener.MODEL else Opener.NOBODY

    def tool_markers(self) -> dict[str, int]:
        return dict(_markers(self.tokenizer))

    def render(self, prompt: Prompt, *, generation_prompt: bool = True) -> Ids:
        """Return the prompt's ids, shape [n], as engines serve them."""
        pieces = message_pieces(prompt, self.tokenizer, self.release, generation_prompt=generation_prompt)
        ids = tuple(encode_pieces(self.tokenizer, pieces))
        if self.template is not None and generation_prompt and self.special_text(prompt) is None:
            given = replace(prompt, tools=tuple(sorted_tools(prompt.tools)))
            self.template.require_equal(self.tokenizer, given, ids, self._template_variables(prompt))
        return ids

    def _template_variables(self, prompt: Prompt) -> dict[str, Json]:
        """Return what Kimi's tokenizer gives its template.

        Beside messages and tools, and with the job's own switches.
        """
        variables = dict(self.template_switches)
        declared = declare_tools(prompt.tools) if prompt.tools else ""
        return {**variables, "tools_ts_str": declared} if declared.startswith("# Tools") else variables

    def ambiguity(self, prompt: Prompt) -> str | None:
        """Return that an engine's own text path cuts this prompt.

        Kimi's `encode` cuts long texts, control tokens among them, before it looks for tokens.
        """
        pieces = list(message_pieces(prompt, self.tokenizer, self.release))
        if len(pieces) * _CONTROL_CHARS + sum(len(piece) for piece in pieces if isinstance(piece, str)) <= RUN_CHARS:
            return None
        name_of = self.tokenizer.name_of
        text = "".join(piece if isinstance(piece, str) else str(name_of(piece)) for piece in pieces)
        if next(prompt_pieces(text)) == text:
            return None
        return f"engines that are given text cut a prompt of {len(text)} characters before they encode it"

    def special_text(self, prompt: Prompt) -> str | None:
        if not prompt.tools and all(_is_innocent(value) for message in prompt.messages for value in message.values()):
            return None
        for piece in message_pieces(prompt, self.tokenizer, self.release):
            if isinstance(piece, str) and (found := self.tokenizer.find_control(piece)) is not None:
                return found[1]
        return None

    def declare_tools(self, tools: Sequence[JsonObject]) -> str:
        """Return the text for a first message of role `tool_declare`.

        Refused where the template says its default system turn before such a message: the same tokens in another order,
        which no count shows.
        """
        if self.release.default_system is not None:
            message = f"{self.name} puts its default system turn before tools that are declared in a message"
            raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field="tools")
        return self.release.declare(tools)

    def assemble(self, parts: Parts) -> Assembled:
        return assembled(parts, self.release.opener, self.tokenizer)

    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]:
        return tuple(spans_of(ids, self.opener(thinking=thinking), self.tokenizer))

    def parts(self, ids: Ids, *, thinking: bool) -> Parts:
        spans = {span.kind: span for span in self.layout(ids, thinking=thinking)}
        opened = SpanKind.THINK_OPEN in spans
        thought = opened or self.opener(thinking=thinking) is Opener.PROMPT
        split = max((spans[kind].stop for kind in _THINKING if kind in spans), default=0)
        ended = SpanKind.END in spans
        close = split - 1 if SpanKind.THINK_CLOSE in spans else split
        return Parts(
            reasoning=text_of(ids, int(opened), close, self.tokenizer) if thought else None,
            think_closed=SpanKind.THINK_CLOSE in spans,
            body=tuple(pieces_of(ids, split, len(ids) - int(ended), self.tokenizer)),
            ended=ended,
        )

    def structured_body(self, content: str, calls: Sequence[ToolCall]) -> tuple[Piece, ...]:
        begin, end, call, argument, stop = self.tool_markers().values()
        body: list[Piece] = [content, begin]
        for one in calls:
            body += (call, one.id, argument, one.arguments, stop)
        return tuple(piece for piece in (*body, end) if piece != "")

    def calls_in(self, ids: Ids) -> list[EmittedCall] | None:
        """Return the calls of the tool section.

        None where the model wrote a marker as text: parsers that read text differ in what they make of it.
        """
        text = self.tokenizer.decode_bytes(token for token in ids if not self.tokenizer.is_control(token))
        if b"<|tool_call" in text:
            return None
        section = self._section_text(ids)
        calls = [EmittedCall(identity, arguments) for identity, arguments in _CALL.findall(section)]
        if (cut := _CUT_CALL.search(section[section.rfind(CALL_BEGIN) :])) is not None:
            calls.append(EmittedCall(cut[1], cut[2], whole=False))
        return calls

    def _section_text(self, ids: Ids) -> str:
        """Return the tool section with its markers spelled.

        Empty where there is none.
        """
        begin, end = self.tokenizer.id_of(SECTION_BEGIN), self.tokenizer.id_of(SECTION_END)
        if begin not in ids:
            return ""
        stop = ids.index(end) + 1 if end in ids else len(ids)
        return self.tokenizer.decode_bytes(ids[ids.index(begin) : stop]).decode("utf-8", errors="replace")


@cache
def _markers(tokenizer: Tokenizer) -> Mapping[str, int]:
    return {name: tokenizer.id_of(name) for name in TOOL_MARKERS}


def _is_innocent(value: Json) -> bool:
    """Return whether a value surely spells no control token.

    It is text without the two characters that control tokens begin with: the common case, fast.
    """
    return isinstance(value, str) and "<" not in value and "[" not in value


def load(name: str, tokenizer: Tokenizer, release: Release = K25) -> KimiFormat:
    """Return the layout of one release, called `name`."""
    template = load_template(tokenizer.directory)
    if template is not None:
        release = as_templated(release, template.source)
    return KimiFormat(name, tokenizer, template, release)
