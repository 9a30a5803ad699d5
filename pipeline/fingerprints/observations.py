"""An exchange as an answer of one model in one format: what was asked, what came, and what its count is made of.

Guarantees: an exchange is observed, or skipped with a reason that can be counted; none is lost without a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.base.prompts import prompt_of
from pipeline.fingerprints.exchanges import Aspect, Exchange
from pipeline.fingerprints.models import Model, Thinks, model_of
from pipeline.fingerprints.sums import Sum, sum_of
from pipeline.fingerprints.votes import Ballot
from pipeline.formats.format import Format, Opener
from pipeline.formats.kimi.tokens import SECTION_BEGIN
from pipeline.proof.answer import ended
from pipeline.proof.locations import special_text
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
class Observed:
    """One answer. `opener` is None where nothing says whether it thought; `blank` says why there is no `sum`."""

    exchange: Exchange
    completion: Completion
    fmt: Format
    model: Model
    opener: Opener | None
    ended: bool | None
    sum: Sum | None
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

    def carries(self, *aspects: Aspect) -> bool:
        """Whether the copy can testify to all of these."""
        return self.exchange.carries.issuperset(aspects)


def observe(exchange: Exchange, formats: Mapping[str, Format]) -> Observed | Skipped:
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


def _observed(exchange: Exchange, completion: Completion, fmt: Format, model: Model) -> Observed:
    opener, ends = _opener(exchange.request or {}, completion, fmt, model), _ended(completion)
    found = _sum(exchange, completion, fmt, opener, ends)
    return Observed(
        exchange=exchange,
        completion=completion,
        fmt=fmt,
        model=model,
        opener=opener,
        ended=ends,
        sum=found if isinstance(found, Sum) else None,
        blank=found if isinstance(found, str) else "",
        prompt_ids=_prompt_ids(exchange, fmt, model),
    )


def _sum(exchange: Exchange, completion: Completion, fmt: Format, opener: Opener | None, end: bool | None) -> Sum | str:  # noqa: FBT001 — as in `Observed`
    request = exchange.request or {}
    called, form = bool(completion.tool_calls), id_form(completion)
    forced = request.get("tool_choice") not in (None, "auto")
    untold = {
        "the copy does not carry its text": Aspect.TEXT not in exchange.carries,
        "its finish reasons do not say how it ended": end is None,
        "a stop text was asked for, and what it cut off was counted or not": bool(request.get("stop")),
        "its call was forced, and forced tokens are counted or not": called and forced,
        "a parser holds back what a cut section ended with": called and not end,
        "ids of its calls are invented, so the length of the model's own is not known": (
            called and form == "invented" and SECTION_BEGIN in fmt.tool_markers()
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
    thinking = asked if asked is not None else model.thinks in (Thinks.ON, Thinks.ALWAYS)
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
    by_default = model.thinks is not Thinks.OFF
    thinking = by_default if asked is None or model.thinks in (Thinks.NEVER, Thinks.ALWAYS) else asked
    tools = request.get("tools")
    return prompt_of(
        {"id": identity or "-", "messages": request["messages"], "tools": tools or [], "thinking": thinking}
    )


def named(one: Observed, value: Json, why: str, *, certain: bool = False, excused: bool = False) -> Ballot:
    """The answer's vote for a value."""
    return Ballot(one.exchange.id, value, one.size, why, certain=certain, excused=excused)


def silent(one: Observed, why: str) -> Ballot:
    """The answer names no value, and says why."""
    return Ballot(one.exchange.id, None, one.size, why)
