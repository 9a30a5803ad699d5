"""One question answered: served prompt, true ids, what is shown.

Guarantees: an answer is in the oracle log and on the bill before its first byte is sent. It is made to the end even if
nobody waits for it any more, as a real provider makes and bills it. No fault damages an answer unless asked for.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import string
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Final

from harness.emulator.account import Account, RateLimit
from harness.emulator.answers import Answerer, Ask, Sampled
from harness.emulator.catalog import MODEL, cost_usd
from harness.emulator.errors import BAD_REQUEST, ApiError, context_overflow, provider_error
from harness.emulator.oracle_log import OracleEntry, OracleLog
from harness.emulator.request import SEED_BITS, ChatRequest
from harness.views.openrouter import COMMENT, KEEP_ALIVE, Meta, body_of, events_of
from harness.views.resplit import is_canonical
from harness.views.view import Shown, view
from pipeline.formats.format import Format
from pipeline.records import Ids, Json, Prompt, RefusedError

ALPHABET: Final = string.ascii_letters + string.digits
KEEP_ALIVE_SECONDS: Final = 0.5


def no_error(_: ChatRequest) -> ApiError | None:
    """Let every request be answered."""
    return None


def unchanged(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Send every body whole."""
    return body


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults between a true answer and the wire.

    `before` may answer with an error in place of an answer; `body` may cut, slow or damage what is sent, in an
    `encoding` of its own.
    """

    before: Callable[[ChatRequest], ApiError | None] = no_error
    body: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]] = unchanged
    encoding: str | None = None


@dataclass(slots=True)
class Service:
    """All that an emulator is.

    `context` in tokens, prompt and answer together; `seeds` for requests without one.
    """

    fmt: Format
    answerer: Answerer
    oracle: OracleLog
    context: int
    model: str = MODEL
    account: Account = field(default_factory=Account)
    rate: RateLimit = field(default_factory=RateLimit)
    faults: Faults = field(default_factory=Faults)
    require_key: bool = False
    seeds: Random = field(default_factory=Random)
    running: set[asyncio.Task[str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that will be answered, under this id."""

    request: ChatRequest
    generation_id: str
    created: int
    ask: Ask


def open_exchange(service: Service, request: ChatRequest) -> Exchange:
    """Render the prompt and check that it fits.

    Raises ApiError where it does not render or fit.
    """
    try:
        prompt_ids = served_prompt(service.fmt, request.prompt)
    except RefusedError as error:
        raise provider_error(request.profile.name, error.refusal.detail, BAD_REQUEST) from None
    room = service.context - len(prompt_ids)
    wanted = room if request.max_tokens is None else request.max_tokens
    if room < 1 or wanted > room:
        raise context_overflow(service.context, len(prompt_ids), max(wanted, 1))
    seed = service.seeds.getrandbits(SEED_BITS) if request.seed is None else request.seed
    created = int(time.time())
    generation_id = f"gen-{created}-{''.join(secrets.choice(ALPHABET) for _ in range(20))}"
    return Exchange(
        request, generation_id, created, Ask(prompt_ids, wanted, request.temperature, seed, request.sample_id)
    )


def served_prompt(fmt: Format, prompt: Prompt) -> Ids:
    """Return prompt ids as engines make them.

    Engines tokenise the rendered text as one string, so that a spelt control token becomes one. Where none is spelt,
    that is `fmt.render`.
    """
    ids = fmt.render(prompt)
    if fmt.special_text(prompt) is None:
        return ids
    return tuple(fmt.tokenizer.encode_prompt(fmt.tokenizer.decode_text(ids)))


async def body_chunks(service: Service, exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield the response body.

    First what keeps the connection alive while the answer is made, then the answer.
    """

    async def answered() -> str:
        try:
            return _sent(service, exchange, await service.answerer.answer(exchange.ask))
        except Exception as error:  # noqa: BLE001  # the status has been sent: what fails now is an error in the body
            failed = provider_error(exchange.request.profile.name, f"{type(error).__name__}: {error}").body().decode()
            return f"data: {failed}\n\n" if exchange.request.stream else failed

    task = asyncio.create_task(answered())
    service.running.add(task)
    task.add_done_callback(service.running.discard)
    waiting = (COMMENT if exchange.request.stream else KEEP_ALIVE).encode()
    # By the id and not by the clock, so that an answer that was ready at once may have white space before it too.
    if exchange.generation_id[-1].islower():
        yield waiting
    while not (await asyncio.wait({task}, timeout=KEEP_ALIVE_SECONDS))[0]:
        yield waiting
    yield task.result().encode()


def _sent(service: Service, exchange: Exchange, sampled: Sampled) -> str:
    """Log and bill the answer; return what the provider sends."""
    request, fmt = exchange.request, service.fmt
    shown = view(
        sampled.ids,
        request.profile,
        fmt,
        thinking=request.prompt.thinking,
        tools_sent=request.tools_sent,
        stream=request.stream,
    )
    cost = cost_usd(request.profile, len(exchange.ask.prompt_ids), shown.completion_tokens)
    service.oracle.append(oracle_entry(fmt, exchange, sampled, cost))
    service.account.bill(exchange.generation_id, cost, generation_record(service, exchange, shown, cost))
    meta = response_meta(service, exchange, sampled, shown, cost)
    return (
        "".join(events_of(shown, meta))
        if request.stream
        else json.dumps(body_of(shown, meta), ensure_ascii=False, separators=(",", ":"))
    )


def oracle_entry(fmt: Format, exchange: Exchange, sampled: Sampled, cost: Decimal) -> OracleEntry:
    """Return the truth about one answer."""
    return OracleEntry(
        generation_id=exchange.generation_id,
        sample_id=exchange.request.sample_id,
        provider=exchange.request.profile.name,
        stream=exchange.request.stream,
        thinking=exchange.request.prompt.thinking,
        prompt_ids=exchange.ask.prompt_ids,
        output_ids=sampled.ids,
        noncanonical=not is_canonical(fmt.tokenizer, sampled.ids),
        resegmented=sampled.resegmented,
        cut=sampled.ids[-1:] != (fmt.end_id,),
        cost=str(cost),
    )


def response_meta(service: Service, exchange: Exchange, sampled: Sampled, shown: Shown, cost: Decimal) -> Meta:
    """Return what the response says of itself.

    The engine's logprobs where it has them: a pool has none, and a re-split has none of its own.
    """
    request, logprobs = exchange.request, shown.logprobs
    if sampled.logprobs is not None and len(sampled.logprobs) == len(logprobs):
        pairs = zip(logprobs, sampled.logprobs, strict=True)
        logprobs = tuple(replace(entry, logprob=value) for entry, value in pairs)
    return Meta(
        generation_id=exchange.generation_id,
        created=exchange.created,
        model=service.model,
        provider=request.profile.name,
        prompt_tokens=len(exchange.ask.prompt_ids),
        cost=float(cost),
        prompt_ids=exchange.ask.prompt_ids if request.return_token_ids else None,
        token_ids=sampled.ids if request.return_token_ids else None,
        logprobs=logprobs if request.logprobs else None,
    )


def generation_record(service: Service, exchange: Exchange, shown: Shown, cost: Decimal) -> dict[str, Json]:
    """Return the `data` of `/generation`.

    `tokens_*` are counts of another tokenizer, as the real ones are.
    """
    text = len(shown.reasoning or "") + len(shown.content or "")
    prompt_tokens = len(exchange.ask.prompt_ids)
    return {
        "id": exchange.generation_id,
        "upstream_id": None,
        "total_cost": float(cost),
        "usage": float(cost),
        "cache_discount": None,
        "upstream_inference_cost": 0,
        "provider_name": exchange.request.profile.name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(exchange.created)),
        "model": service.model,
        "app_id": None,
        "streamed": exchange.request.stream,
        "cancelled": False,
        "tokens_prompt": prompt_tokens // 2,
        "tokens_completion": text // 4,
        "native_tokens_prompt": prompt_tokens,
        "native_tokens_completion": shown.completion_tokens,
        "native_tokens_reasoning": len(shown.reasoning or "") // 4,
        "native_tokens_cached": 0,
        "finish_reason": shown.finish_reason,
        "native_finish_reason": shown.native_finish_reason,
        "is_byok": False,
        "api_type": "completions",
        "origin": "",
    }
