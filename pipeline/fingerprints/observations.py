"""Read an exchange as one model's answer, with its tokens.

Guarantees: an exchange is observed, or skipped with a reason that can be counted. The text is encoded as it came,
segment by segment. An answer whose text cannot be all that was emitted (U+FFFD, fields out of order, a marker that may
be text, reasoning that was left out) has no `TokenSum`, and says why.
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
"""Provider, model, and whether the answer was streamed."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why an exchange was skipped, and what caused it."""

    reason: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class TokenSum:
    """What one answer's token count is made of.

    `counted`: the provider's `completion_tokens`. `text`: the shown text, encoded again, with the grammar of its tool
    calls; `space`: how many of those the white space at the ends of its fields makes. `think`: the control tokens of
    the thinking, which no text shows; `closed`: whether the thinking was closed. `ended`: 1 where an end token was
    emitted. `section`: whether tool markers stand in it. `spelled`: how many tokens the deltas spell one by one, None
    where they are not tokens; `canonical`: whether those are the text encoded again.
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
        """Tokens counted beside the text, encoded again."""
        return self.counted - self.text

    @property
    def beside(self) -> int:
        """Tokens counted beside the emitted text, as deltas spell it."""
        return self.counted - (self.text if self.spelled is None else self.spelled)

    @property
    def certain(self) -> bool:
        """Whether deltas show that the canonical tokens were emitted."""
        return self.spelled is not None and self.canonical


@dataclass(frozen=True, slots=True)
class Observation:
    """One answer in its model's format.

    `opener` is None where nothing says whether it thought, `ended` where its finish reasons contradict, `prompt_ids`
    where our rendering is not known to be the model's own. `why_no_sum` says why `sum` is None.
    """

    exchange: Exchange
    completion: Completion
    fmt: Format
    model: Model
    opener: Opener | None
    ended: bool | None
    sum: TokenSum | None
    why_no_sum: str
    prompt_ids: Ids | None

    @property
    def route(self) -> RouteKey:
        """The answer's route; without a provider, the API is it."""
        answer, exchange = self.completion, self.exchange
        provider = answer.provider or exchange.provider or re.split("[/:]", exchange.endpoint)[0]
        return provider, answer.model or exchange.model, exchange.stream

    @property
    def size(self) -> int:
        """Length in tokens, as counted; 0 where no count came."""
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
        """The limit that the request sets."""
        value = self.request.get("max_tokens") or self.request.get("max_completion_tokens")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def carries(self, *parts: Fidelity) -> bool:
        """Whether the copy can testify to all of these."""
        return self.exchange.carries.issuperset(parts)

    def vote(self, value: Json, why: str, *, certain: bool = False, excused: bool = False) -> Vote:
        """Return the answer's vote for a value."""
        return Vote(self.exchange.id, value, self.size, why, certain=certain, excused=excused)

    def abstain(self, why: str) -> Vote:
        """Return a vote that names no value."""
        return Vote(self.exchange.id, None, self.size, why)


def observe(exchange: Exchange, formats: Mapping[str, Format]) -> Observation | Skipped:
    """Return the answer in its format, or why skipped.

    Raises RefusedError, UnicodeError or RecursionError for text that has no tokens or is nested too deeply.
    """
    if (skipped := _without_answer(exchange)) is not None:
        return skipped
    try:
        completion = completion_of_sse(exchange.body) if exchange.stream else completion_of_json(exchange.body.encode())
    except UnicodeEncodeError:
        return Skipped("no answer can be read", "half a surrogate pair")
    except RefusedError as error:
        return Skipped("no answer can be read", str(error.refusal.reason))
    slug = completion.model or exchange.model
    model = model_of(slug)
    if model is None:
        return Skipped("the model has no format here", slug)
    fmt = formats.get(model.format)
    if fmt is None:
        return Skipped("no tokenizer of the model's format was given", f"{slug} needs {model.format}")
    return _observed(exchange, completion, fmt, model)


def _without_answer(exchange: Exchange) -> Skipped | None:
    """Return why an exchange has no answer to read."""
    if exchange.request is None or "messages" not in exchange.request:
        return Skipped("no chat completion was asked for", exchange.endpoint or "no endpoint")
    if exchange.status != OK:
        return Skipped("the answer is an error", f"status {exchange.status}")
    if not exchange.carries:
        return Skipped("the copy testifies to nothing", exchange.fidelity)
    return None


def _observed(exchange: Exchange, completion: Completion, fmt: Format, model: Model) -> Observation:
    request = exchange.request or {}
    opener = opener_of(request, completion, fmt, model)
    try:
        is_ended = ended(completion)
    except RefusedError:
        is_ended = None
    found = _sum(exchange, completion, fmt, opener, is_ended)
    return Observation(
        exchange=exchange,
        completion=completion,
        fmt=fmt,
        model=model,
        opener=opener,
        ended=is_ended,
        sum=found if isinstance(found, TokenSum) else None,
        why_no_sum=found if isinstance(found, str) else "",
        prompt_ids=rendered_prompt(exchange.id, request, fmt, model),
    )


# What the request asks for


def requested_thinking(request: JsonObject) -> bool | None:
    """Return whether a request of any API asks for thinking.

    None where it says nothing, or contradicts itself.
    """
    values: list[Json] = [request.get("enable_thinking"), request.get("reasoning_effort")]
    for name in ("reasoning", "thinking", "chat_template_kwargs"):
        if isinstance(options := request.get(name), dict):
            values += [options.get(key) for key in ("enabled", "effort", "type", "enable_thinking", "thinking")]
    switches = {
        value if isinstance(value, bool) else value not in ("none", "disabled")
        for value in values
        if isinstance(value, bool | str)
    }
    return switches.pop() if len(switches) == 1 else None


def hides_reasoning(request: JsonObject) -> bool:
    """Whether the request asks to leave the reasoning out."""
    options = request.get("reasoning")
    return request.get("include_reasoning") is False or (isinstance(options, dict) and options.get("exclude") is True)


def opener_of(request: JsonObject, completion: Completion, fmt: Format, model: Model) -> Opener | None:
    """Return who opened the reasoning.

    None where an answer without any may have thought.
    """
    if completion.reasoning:
        return model.opener(fmt, thinking=True)
    requested = requested_thinking(request)
    thinking = requested if requested is not None else model.thinks in (ThinkingMode.ON, ThinkingMode.ALWAYS)
    opener = model.opener(fmt, thinking=thinking)
    return opener if opener is Opener.NOBODY else None


_CHANGES_PROMPT = frozenset({"response_format", "functions", "function_call", "structured_outputs", "prediction"})
"""Keys of a request with which servers render a prompt in ways that are not known here."""


def rendered_prompt(identity: str, request: JsonObject, fmt: Format, model: Model) -> Ids | None:
    """Return the prompt's ids; None where they are not known."""
    if not model.renders or _CHANGES_PROMPT & request.keys():
        return None
    try:
        prompt = requested_prompt(identity, request, model)
        return None if special_text(fmt, prompt) is not None else fmt.render(prompt)
    except RefusedError:
        return None


def requested_prompt(identity: str, request: JsonObject, model: Model) -> Prompt:
    """Return a request's prompt, as the model takes it.

    RefusedError for messages or tools that make none.
    """
    requested = requested_thinking(request)
    by_default = model.thinks is not ThinkingMode.OFF
    is_fixed = requested is None or model.thinks in (ThinkingMode.NEVER, ThinkingMode.ALWAYS)
    row = {
        "id": identity or "-",
        "messages": request["messages"],
        "tools": request.get("tools") or [],
        "thinking": by_default if is_fixed else requested,
    }
    return prompt_of(row)


# What the count is made of


def _sum(
    exchange: Exchange,
    completion: Completion,
    fmt: Format,
    opener: Opener | None,
    end: bool | None,  # noqa: FBT001 — as in `Observation`
) -> TokenSum | str:
    """Return the sum of an exchange, or why none."""
    request = exchange.request or {}
    called, form = bool(completion.tool_calls), id_form(completion)
    forced = request.get("tool_choice") not in (None, "auto")
    obstacles = {
        "the copy does not carry its text": Fidelity.TEXT not in exchange.carries,
        "its finish reasons do not say how it ended": end is None,
        "a stop text was asked for, and what it cut off was counted or not": bool(request.get("stop")),
        "its call was forced, and forced tokens are counted or not": called and forced,
        "a parser holds back what a cut section ended with": called and not end,
        "ids of its calls are invented, so the length of the model's own is not known": (
            called and form == "invented" and fmt.calls_as_text
        ),
    }
    why = next((why for why, holds in obstacles.items() if holds), None)
    if why is not None:
        return why
    if opener is None:
        return "no reasoning came, and nothing says that there was none"
    raw = not request.get("tools")
    return sum_of(completion, fmt, opener, ended=end is True, raw_markers=raw, prefix_cut=form == "prefix_cut")


def id_form(completion: Completion) -> str:
    """Return the form of parsed calls' ids.

    `verbatim` is Kimi's own, also where there are no calls; `prefix_cut` lost `functions.`; others are `invented`.
    """
    names = [(call.id, re.escape(call.name)) for call in completion.tool_calls]
    if all(re.fullmatch(rf"functions\.{name}:\d+", identity) for identity, name in names):
        return "verbatim"
    return "prefix_cut" if all(re.fullmatch(rf"{name}:\d+", identity) for identity, name in names) else "invented"


def sum_of(
    completion: Completion, fmt: Format, opener: Opener, *, ended: bool, raw_markers: bool, prefix_cut: bool
) -> TokenSum | str:
    """Return the sum of an answer, or why none.

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
        why = _why_incomplete(completion, opener, ended=ended)
        return why or _token_sum(completion, fmt, opener, body, usage.completion_tokens, ended=ended)
    except RefusedError as error:
        return f"{error.refusal.reason}: {error.refusal.detail}"


def _why_incomplete(completion: Completion, opener: Opener, *, ended: bool) -> str:
    """Return why the text is not everything emitted, or ""."""
    (reasoning, content), calls = texts(completion), completion.tool_calls
    rank = {"reasoning": 0, "content": 1, "tool_calls": 2}
    pairs = pairwise(completion.deltas or ())
    obstacles = {
        "nothing was delivered": not (reasoning or content or calls),
        "U+FFFD stands in its text": "\ufffd" in reasoning + content,
        "its fields came out of order": any(rank[before.field] > rank[after.field] for before, after in pairs),
        "reasoning came though nothing was to think": bool(reasoning) and opener is Opener.NOBODY,
        "no reasoning came, and nothing says that there was none": not reasoning and opener is not Opener.NOBODY,
        "it ended without content, and nothing says that its thinking was closed": (
            bool(reasoning) and ended and not (content or calls)
        ),
    }
    return next((why for why, holds in obstacles.items() if holds), "")


_PREFIX = "functions."


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
    spelled = None if completion.tool_calls else _spelled_by_deltas(completion, fmt, len(shown), counted)
    return TokenSum(
        counted=counted,
        text=len(shown),
        think=think,
        ended=int(ended),
        section=any(isinstance(piece, int) for piece in body),
        closed=closed,
        space=sum(len(encode(field)) - len(encode(field.strip())) for field in texts(completion)),
        spelled=None if spelled is None else len(spelled),
        canonical=spelled is None or list(spelled) == shown,
    )


def _spelled_by_deltas(completion: Completion, fmt: Format, text: int, counted: int) -> Ids | None:
    """Return the tokens that the deltas spell.

    None where they spell none, or more than were counted (pieces of tokens). A marker in the text is the control token,
    as in the rest of the sum.
    """
    if completion.deltas is None:
        return None
    reasoning = spell(fmt.tokenizer, delta_texts(completion, "reasoning"), {})
    content = spell(fmt.tokenizer, delta_texts(completion, "content"), fmt.tool_markers())
    if reasoning is None or content is None:
        return None
    ids = reasoning + content
    return ids if len(ids) == text or len(ids) <= counted else None
