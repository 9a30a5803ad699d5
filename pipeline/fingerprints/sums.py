"""What an answer's count is made of, as far as its own text tells.

Guarantees: the text is encoded as it came, segment by segment. An answer whose text cannot be all that was emitted
(U+FFFD, fields out of order, a marker that may be text, reasoning that was left out) has no sum, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.formats.format import Format, Opener, Parts, opening
from pipeline.formats.kimi.tokens import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.proof.answer import split_markers, texts, texts_of
from pipeline.proof.stream_deltas import spell
from pipeline.records import Completion, Ids, RefusedError, ToolCall

_PREFIX = "functions."


@dataclass(frozen=True, slots=True)
class Sum:
    """Tokens of one answer. `counted` is the provider's `completion_tokens`.

    `text`: what is shown, encoded again, with the grammar of its tool calls; `space`: how many of those the white space
    at the ends of its fields makes. `think`: the control tokens of the thinking, which no text shows. `ended`: 1 where
    an end token was emitted. `spelled`: how many tokens the deltas spell one by one, None where they are not tokens;
    `canonical`: whether those are the text encoded again.
    """

    counted: int
    text: int
    think: int
    ended: int
    section: bool
    closed: bool
    space: int = 0
    spelled: int | None = None
    canonical: bool = True

    @property
    def extra(self) -> int:
        """How many tokens were counted beside the text, encoded again."""
        return self.counted - self.text

    @property
    def beside(self) -> int:
        """How many were counted beside those of the text that were emitted, as far as the deltas spell them."""
        return self.counted - (self.text if self.spelled is None else self.spelled)

    @property
    def certain(self) -> bool:
        """Whether the deltas show that the text encoded again is what was emitted."""
        return self.spelled is not None and self.canonical


def sum_of(
    completion: Completion, fmt: Format, opener: Opener, *, ended: bool, raw_markers: bool, prefix_cut: bool
) -> Sum | str:
    """The sum of an answer, or why it has none.

    `raw_markers`: markers in its content are its tool calls' own, as no `tools` were sent. `prefix_cut`: ids of its
    calls lost `functions.`.
    """
    usage = completion.usage
    if usage is None or usage.completion_tokens is None:
        return "completion_tokens is absent"
    try:
        body = _body(completion, fmt, raw_markers=raw_markers, prefix_cut=prefix_cut)
        if isinstance(body, str):
            return body
        why = _why_not(completion, opener, ended=ended)
        return why or _sum(completion, fmt, opener, body, usage.completion_tokens, ended=ended)
    except RefusedError as error:
        return f"{error.refusal.reason}: {error.refusal.detail}"


def _why_not(completion: Completion, opener: Opener, *, ended: bool) -> str:
    """What keeps the text from being all that was emitted; empty where nothing does."""
    (reasoning, content), calls = texts(completion), completion.tool_calls
    rank = {"reasoning": 0, "content": 1, "tool_calls": 2}
    pairs = pairwise(completion.deltas or ())
    untold = {
        "nothing was delivered": not (reasoning or content or calls),
        "U+FFFD stands in its text": "\ufffd" in reasoning + content,
        "its fields came out of order": any(rank[before.field] > rank[after.field] for before, after in pairs),
        "reasoning came though nothing was to think": bool(reasoning) and opener is Opener.NOBODY,
        "no reasoning came, and nothing says that there was none": not reasoning and opener is not Opener.NOBODY,
        "it ended without content, and nothing says that its thinking was closed": (
            bool(reasoning) and ended and not (content or calls)
        ),
    }
    return next((why for why, holds in untold.items() if holds), "")


def _body(completion: Completion, fmt: Format, *, raw_markers: bool, prefix_cut: bool) -> tuple[str | int, ...] | str:
    content, markers = completion.content or "", fmt.tool_markers()
    spelled = split_markers(fmt, content)
    marked = len(spelled) > 1 or any(isinstance(piece, int) for piece in spelled)
    if not completion.tool_calls:
        if marked and not raw_markers:
            return "a tool marker stands in its text"
        return spelled if marked else (content,) if content else ()
    if marked:
        return "a tool marker stands in its text beside parsed calls"
    if not markers.keys() >= {SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END}:
        return f"parsed calls of {fmt.name} do not say how the model wrote them"
    pieces = [piece for call in completion.tool_calls for piece in _call(call, prefix_cut=prefix_cut)]
    body = [content, SECTION_BEGIN, *pieces, SECTION_END]
    return tuple(markers.get(piece, piece) for piece in body if piece)


def _call(call: ToolCall, *, prefix_cut: bool) -> Sequence[str]:
    identity = f"{_PREFIX}{call.id}" if prefix_cut else call.id
    return (CALL_BEGIN, identity, ARGUMENT_BEGIN, call.arguments, CALL_END)


def _sum(
    completion: Completion, fmt: Format, opener: Opener, body: Sequence[str | int], counted: int, *, ended: bool
) -> Sum:
    reasoning = None if opener is Opener.NOBODY else completion.reasoning or ""
    closed = reasoning is not None and (bool(body) or ended)
    emitted = len(fmt.assemble(Parts(reasoning, think_closed=closed, body=tuple(body), ended=ended)).ids)
    encode = fmt.tokenizer.encode
    shown = [*encode(reasoning or "")]
    for piece in body:
        shown += [piece] if isinstance(piece, int) else encode(piece)
    think = emitted - len(shown) - int(ended)
    if reasoning is not None and opener is Opener.PROMPT and fmt.opener(thinking=True) is Opener.MODEL:
        think -= len(opening(fmt))
    section = any(isinstance(piece, int) for piece in body)
    spelled = None if completion.tool_calls else _spelled(completion, fmt, len(shown), counted)
    return Sum(
        counted=counted,
        text=len(shown),
        think=think,
        ended=int(ended),
        section=section,
        closed=closed,
        space=sum(len(encode(field)) - len(encode(field.strip())) for field in texts(completion)),
        spelled=None if spelled is None else len(spelled),
        canonical=spelled is None or list(spelled) == shown,
    )


def _spelled(completion: Completion, fmt: Format, text: int, counted: int) -> Ids | None:
    """The tokens that the deltas spell; None where they are none, or more than were counted (pieces of tokens).

    A marker in the text is the control token, as the whole sum reads it.
    """
    if completion.deltas is None:
        return None
    reasoning = spell(fmt.tokenizer, texts_of(completion, "reasoning"), {})
    content = spell(fmt.tokenizer, texts_of(completion, "content"), fmt.tool_markers())
    if reasoning is None or content is None:
        return None
    ids = reasoning + content
    return ids if len(ids) == text or len(ids) <= counted else None
