"""An exchange as an answer of one model in one format: what was asked, what came, and what its count is made of.

Guarantees: an exchange is observed, or skipped with a reason that can be counted; none is lost without a word.

What an answer's count is made of, as far as its own text tells.

Guarantees: the text is encoded as it came, segment by segment. An answer whose text cannot be all that was emitted
(U+FFFD, fields out of order, a marker that may be text, reasoning that was left out) has no sum, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from pipeline.base.prompts import prompt_of
from pipeline.fingerprints.exchanges import Exchange, Fidelity
from pipeline.fingerprints.models import Model, ThinkingMode, model_of
from pipeline.fingerprints.votes import Vote
from pipeline.formats.format import Format, Opener, Parts
from pipeline.proof.answer import delta_texts, ended, texts
from pipeline.proof.locations import special_text
from pipeline.proof.stream_deltas import spell
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Completion, Ids, Json, JsonObject, Prompt, RefusedError

OK = 200
RouteKey: TypeAlias = tuple[str, str, bool]
_OTHER_PROMPT = frozenset({"response_format", "functions", "function_call", "structured_outputs", "prediction"})


@dataclass(frozen=True, slots=True)
class Skipped:
    """An exchange from which nothing is learned: the reason, and what it is of."""

    reason: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """One answer. `opener` is None where nothing says whether it thought; `blank` says why there is no `sum`."""

    exchange: Exchange
    completion: Completion
    fmt: Format
    model: Model
    opener: Opener | None
    ended: bool | None
    sum: TokenSum | None
    blank: str
    prompt_ids: Ids | None

    @property
    def route(self) -> RouteKey:
        """Provider, model and streamed or not, as the answer says; an API that names no provider is its own."""
        told, kept = self.completion, self.exchange
        provider = told.provider or kept.provider or re.split("[/:]", kept.endpoint)[0]
        return provider, told.model or kept.model, kept.stream

    @property
    def size(self) -> int:
        """Its length in tokens, as counted."""
        usage = self.completion.usage
        return (usage.completion_tokens or 0) if usage else 0

    @property
    def request(self) -> JsonObject:
        return self.exchange.request or {}

    @property
    def tools_sent(self) -> bool:
        return bool(self.request.get("tools"))

    @property
    def max_tokens(self) -> int | None:
        """The limit that was asked for."""
        value = self.request.get("max_tokens") or self.request.get("max_completion_tokens")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def carries(self, *aspects: Fidelity) -> bool:
        """Whether the copy can testify to all of these."""
        return self.exchange.carries.issuperset(aspects)


def observe(exchange: Exchange, formats: Mapping[str, Format]) -> Observation | Skipped:
    """The answer in the format of its model, or why nothing can be learned from it."""
    if (why := _why_not(exchange)) is not None:
        return why
    try:
        read = completion_of_sse(exchange.body) if exchange.stream else completion_of_json(exchange.body.encode())
    except UnicodeEncodeError:
        return Skipped("no answer can be read", "half a surrogate pair")
    except RefusedError as error:
        return Skipped("no answer can be read", str(error.refusal.reason))
    slug = read.model or exchange.model
    model = model_of(slug)
    if model is None:
        return Skipped("the model has no format here", slug)
    fmt = formats.get(model.format)
    if fmt is None:
        return Skipped("no tokenizer of the model's format was given", f"{slug} needs {model.format}")
    return _observed(exchange, read, fmt, model)


def _why_not(exchange: Exchange) -> Skipped | None:
    if exchange.request is None or "messages" not in exchange.request:
        return Skipped("no chat completion was asked for", exchange.endpoint or "no endpoint")
    if exchange.status != OK:
        return Skipped("the answer is an error", f"status {exchange.status}")
    if not exchange.carries:
        return Skipped("the copy testifies to nothing", exchange.fidelity)
    return None


def _observed(exchange: Exchange, completion: Completion, fmt: Format, model: Model) -> Observation:
    opener, ends = _opener(exchange.request or {}, completion, fmt, model), _ended(completion)
    found = _sum(exchange, completion, fmt, opener, ends)
    return Observation(
        exchange=exchange,
        completion=completion,
        fmt=fmt,
        model=model,
        opener=opener,
        ended=ends,
        sum=found if isinstance(found, TokenSum) else None,
        blank=found if isinstance(found, str) else "",
        prompt_ids=_prompt_ids(exchange, fmt, model),
    )


def _sum(
    exchange: Exchange,
    completion: Completion,
    fmt: Format,
    opener: Opener | None,
    end: bool | None,  # noqa: FBT001 — as in `Observation`
) -> TokenSum | str:
    request = exchange.request or {}
    called, form = bool(completion.tool_calls), id_form(completion)
    forced = request.get("tool_choice") not in (None, "auto")
    untold = {
        "the copy does not carry its text": Fidelity.TEXT not in exchange.carries,
        "its finish reasons do not say how it ended": end is None,
        "a stop text was asked for, and what it cut off was counted or not": bool(request.get("stop")),
        "its call was forced, and forced tokens are counted or not": called and forced,
        "a parser holds back what a cut section ended with": called and not end,
        "ids of its calls are invented, so the length of the model's own is not known": (
            called and form == "invented" and fmt.calls_as_text
        ),
    }
    why = next((why for why, holds in untold.items() if holds), None)
    if why is not None:
        return why
    if opener is None:
        return "no reasoning came, and nothing says that there was none"
    raw = not request.get("tools")
    return sum_of(completion, fmt, opener, ended=end is True, raw_markers=raw, prefix_cut=form == "prefix_cut")


def id_form(completion: Completion) -> str:
    """How ids of parsed calls look: Kimi's own, without `functions.`, or neither; Kimi's own where there are none."""
    names = [(call.id, re.escape(call.name)) for call in completion.tool_calls]
    if all(re.fullmatch(rf"functions\.{name}:\d+", identity) for identity, name in names):
        return "verbatim"
    return "prefix_cut" if all(re.fullmatch(rf"{name}:\d+", identity) for identity, name in names) else "invented"


def _ended(completion: Completion) -> bool | None:
    try:
        return ended(completion)
    except RefusedError:
        return None


def _opener(request: JsonObject, completion: Completion, fmt: Format, model: Model) -> Opener | None:
    """Who opened the reasoning; None where an answer without any may have thought."""
    asked = asked_thinking(request)
    if completion.reasoning:
        return model.opener(fmt, thinking=True)
    thinking = asked if asked is not None else model.thinks in (ThinkingMode.ON, ThinkingMode.ALWAYS)
    opener = model.opener(fmt, thinking=thinking)
    return opener if opener is Opener.NOBODY else None


def asked_thinking(request: JsonObject) -> bool | None:
    """What the request says of thinking, in any of the ways that APIs know; None where it says nothing."""
    told: list[Json] = [request.get("enable_thinking"), request.get("reasoning_effort")]
    for name in ("reasoning", "thinking", "chat_template_kwargs"):
        if isinstance(holder := request.get(name), dict):
            told += [holder.get(key) for key in ("enabled", "effort", "type", "enable_thinking", "thinking")]
    said = {_switch(value) for value in told} - {None}
    return said.pop() if len(said) == 1 else None


def _switch(value: Json) -> bool | None:
    if isinstance(value, bool):
        return value
    return value not in ("none", "disabled") if isinstance(value, str) else None


def hides_reasoning(request: JsonObject) -> bool:
    """Whether the request asks for the reasoning to be left out of the answer."""
    told = request.get("reasoning")
    return request.get("include_reasoning") is False or (isinstance(told, dict) and told.get("exclude") is True)


def _prompt_ids(exchange: Exchange, fmt: Format, model: Model) -> Ids | None:
    """The prompt as its format renders it; None where that is not known to be the model's own rendering."""
    request = exchange.request or {}
    if not model.renders or _OTHER_PROMPT & request.keys():
        return None
    try:
        prompt = _prompt(exchange.id, request, model)
        return None if special_text(fmt, prompt) is not None else fmt.render(prompt)
    except RefusedError:
        return None


def _prompt(identity: str, request: JsonObject, model: Model) -> Prompt:
    asked = asked_thinking(request)
    by_default = model.thinks is not ThinkingMode.OFF
    thinking = by_default if asked is None or model.thinks in (ThinkingMode.NEVER, ThinkingMode.ALWAYS) else asked
    tools = request.get("tools")
    return prompt_of(
        {"id": identity or "-", "messages": request["messages"], "tools": tools or [], "thinking": thinking}
    )


def named(one: Observation, value: Json, why: str, *, certain: bool = False, excused: bool = False) -> Vote:
    """The answer's vote for a value."""
    return Vote(one.exchange.id, value, one.size, why, certain=certain, excused=excused)


def silent(one: Observation, why: str) -> Vote:
    """The answer names no value, and says why."""
    return Vote(one.exchange.id, None, one.size, why)


_PREFIX = "functions."


@dataclass(frozen=True, slots=True)
class TokenSum:
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
) -> TokenSum | str:
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
        why = _why_no_sum(completion, opener, ended=ended)
        return why or _token_sum(completion, fmt, opener, body, usage.completion_tokens, ended=ended)
    except RefusedError as error:
        return f"{error.refusal.reason}: {error.refusal.detail}"


def _why_no_sum(completion: Completion, opener: Opener, *, ended: bool) -> str:
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
    content, calls = completion.content or "", completion.tool_calls
    spelled = fmt.split_markers(content)
    marked = len(spelled) > 1 or any(isinstance(piece, int) for piece in spelled)
    if not calls:
        if marked and not raw_markers:
            return "a tool marker stands in its text"
        return spelled if marked else (content,) if content else ()
    if marked:
        return "a tool marker stands in its text beside parsed calls"
    if prefix_cut:
        calls = tuple(replace(call, id=f"{_PREFIX}{call.id}") for call in calls)
    body = fmt.structured_body(content, calls)
    return f"parsed calls of {fmt.name} do not say how the model wrote them" if body is None else body


def _token_sum(
    completion: Completion, fmt: Format, opener: Opener, body: Sequence[str | int], counted: int, *, ended: bool
) -> TokenSum:
    reasoning = None if opener is Opener.NOBODY else completion.reasoning or ""
    closed = reasoning is not None and (bool(body) or ended)
    emitted = len(fmt.assemble(Parts(reasoning, think_closed=closed, body=tuple(body), ended=ended)).ids)
    encode = fmt.tokenizer.encode
    shown = [*encode(reasoning or "")]
    for piece in body:
        shown += [piece] if isinstance(piece, int) else encode(piece)
    think = emitted - len(shown) - int(ended)
    if reasoning is not None and opener is Opener.PROMPT and fmt.opener(thinking=True) is Opener.MODEL:
        think -= len(fmt.opening_ids)
    section = any(isinstance(piece, int) for piece in body)
    spelled = None if completion.tool_calls else _spelled(completion, fmt, len(shown), counted)
    return TokenSum(
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
    reasoning = spell(fmt.tokenizer, delta_texts(completion, "reasoning"), {})
    content = spell(fmt.tokenizer, delta_texts(completion, "content"), fmt.tool_markers())
    if reasoning is None or content is None:
        return None
    ids = reasoning + content
    return ids if len(ids) == text or len(ids) <= counted else None
