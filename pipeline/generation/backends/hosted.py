"""Answer rows by a hosted API, at one pinned endpoint.

Serves the emulator as well. Guarantees: each request goes through ledger and budget, and a row that cannot be proven
whatever the answer is refused before it is paid for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from pipeline.base.money import pico
from pipeline.generation.billing import completion_of
from pipeline.generation.budget import Amount
from pipeline.generation.coverage import withheld
from pipeline.generation.engines.catalog import CatalogError, Endpoint, fetch_endpoint, fetch_key
from pipeline.generation.engines.openrouter import KeyMissingError, NoAnswerError, OpenRouter, encode_body, open_client
from pipeline.generation.engines.request import request_body
from pipeline.generation.ledger import Request, State, identity
from pipeline.generation.outcome import Outcome, Row, Status, StopError, refusing_errors
from pipeline.generation.paid_client import PaidClient
from pipeline.generation.plan import Plan, row_seed
from pipeline.generation.retry import RetryingClient
from pipeline.proof.locations import special_text
from pipeline.proof.reconstruct import Expected
from pipeline.records import Prompt, Reason, Refusal, RefusedError

RENDERED = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")


class HostedBackend:
    """`Backend` over one endpoint of a hosted API."""

    batch = 1

    def __init__(self, plan: Plan, endpoint: Endpoint, client: PaidClient, run: str) -> None:
        self.workers = plan.concurrency
        self.expected = Expected(endpoint.provider_name, plan.route.model, plan.sampling.max_tokens)
        self._plan = plan
        self._endpoint = endpoint
        self._run = run
        self._client = RetryingClient(client, plan.patience, plan.concurrency)

    def refusal(self, row: Row) -> Refusal | None:
        """Refuse a prompt that this endpoint cannot prove.

        It is too long, holds what is not rendered, ends on an answer, or spells a control token while no ids come back.
        """
        fmt, sampling = self._plan.fmt, self._plan.sampling
        wanted = len(row.prompt_ids) + sampling.max_tokens
        if wanted > self._endpoint.context_length:
            detail = f"prompt and max_tokens need {wanted} tokens, the endpoint takes {self._endpoint.context_length}"
            return Refusal(Reason.PROMPT_UNSUPPORTED, detail, field="messages")
        if (unknown := unrendered_keys(row.prompt) or begun_answer(row.prompt)) is not None:
            return unknown
        return None if sampling.return_token_ids else special_text(fmt, row.prompt)

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """Return one outcome a row. Raises StopError."""
        return [await self._outcome(row) for row in rows]

    def close(self) -> None:
        """Send nothing more; what is in flight still comes in."""
        self._client.close()

    async def _outcome(self, row: Row) -> Outcome:
        made = refusing_errors(lambda: self._request(row))
        if isinstance(made, Refusal):
            return Outcome(row, Status.ANSWERED, made, sent=False)
        request, worst = made
        try:
            reply = await self._client.ask(request, worst, withheld=withheld(row.prompt, self._plan))
        except RefusedError as error:
            return Outcome(row, Status.ANSWERED, error.refusal, sent=False)
        if reply.again:
            return Outcome(row, Status.AGAIN, request=request.identity, sent=reply.sent)
        entry, raw = reply.entry, reply.entry.answer
        paid = entry.worst_pico if entry.cost_pico is None else entry.cost_pico
        paid = 0 if entry.state is State.FAILED_FREE else paid
        if raw is None or entry.state is State.UNKNOWN:
            return Outcome(row, Status.UNKNOWN, request=request.identity, sent=reply.sent, pico=paid)
        answer = refusing_errors(lambda: completion_of(raw, stream=self._plan.route.stream))
        return Outcome(row, Status.ANSWERED, answer, request.identity, reply.sent, paid, entry.cost_pico, worst.pico)

    def _request(self, row: Row) -> tuple[Request, Amount]:
        plan, prompt = self._plan, row.prompt
        sampling = replace(plan.sampling, seed=row_seed(plan.sampling.seed, prompt.id))
        body = request_body(
            *(prompt, plan.route, sampling, plan.tool_mode, plan.fmt, sample_id(prompt)),
            privacy=plan.privacy,
            supported=self._endpoint.supported_parameters,
        )
        worst = worst_case(len(row.prompt_ids), plan.sampling.max_tokens, self._endpoint)
        key = identity(plan.route, body, run=self._run)  # type: ignore[arg-type]  # request_body's values are JSON
        sent = (prompt.id, encode_body(body), worst.pico, prompt.dataset, worst.tokens)
        request = Request(key, self._run, plan.route, *sent)
        return request, worst


def unrendered_keys(prompt: Prompt) -> Refusal | None:
    """Refuse a message key that is sent and not rendered.

    A provider may read it, so the prompt ids would be unknown.
    """
    for position, message in enumerate(prompt.messages):
        for key, value in message.items():
            if key not in RENDERED and value not in (None, [], {}, ""):
                detail = f"message {position} has {key!r}, which would be sent and is not rendered"
                return Refusal(Reason.PROMPT_UNSUPPORTED, detail, field="messages")
    return None


def begun_answer(prompt: Prompt) -> Refusal | None:
    """Refuse a prompt that ends on an answer.

    Providers go on with such an answer, and what is rendered begins another.
    """
    last = len(prompt.messages) - 1
    if last < 0 or prompt.messages[last].get("role") != "assistant":
        return None
    detail = f"message {last}, the last, is the assistant's: cut it with `pipeline prepare`, which ends on a question"
    return Refusal(Reason.PROMPT_UNSUPPORTED, detail, field="messages")


def client_of(plan: Plan) -> OpenRouter:
    """Return the client of a hosted route. Raises StopError."""
    try:
        return open_client("openrouter" if plan.route.api == "openrouter" else "emulator", plan.base_url)
    except (KeyMissingError, ValueError) as error:
        raise StopError(str(error)) from error


async def find_endpoint(client: OpenRouter, plan: Plan) -> Endpoint:
    """Return the endpoint that the route pins.

    Raises StopError where it is not there or gives fewer tokens than the plan asks for.
    """
    try:
        endpoint = await fetch_endpoint(client, plan.route)
    except NoAnswerError as error:
        start = "" if plan.route.api == "openrouter" else " Start an emulator with: python -m harness emulator --port 0"
        raise StopError(f"{error}{start}") from error
    except CatalogError as error:
        raise StopError(str(error)) from error
    most = endpoint.max_completion_tokens
    if most is not None and plan.sampling.max_tokens > most:
        raise StopError(f"{endpoint.tag} gives at most {most} tokens: use --max-tokens {most} or less")
    return endpoint


async def find_key_limit(client: OpenRouter) -> Decimal | None:
    """Return what the key may still spend, in USD.

    None where it has no limit. Raises StopError.
    """
    try:
        return (await fetch_key(client)).remaining_usd
    except (NoAnswerError, CatalogError) as error:
        raise StopError(f"{error}. Set the key again, or run the same command later") from error


def worst_case(prompt_tokens: int, max_tokens: int, endpoint: Endpoint) -> Amount:
    """Return the most that a request may cost and count.

    Providers' own templates were seen to add up to 94 tokens to a prompt with tools; half as much again and 128 is
    above all that was recorded.
    """
    prompt = prompt_tokens + prompt_tokens // 2 + 128
    usd: Decimal = endpoint.request_usd + prompt * endpoint.prompt_usd + max_tokens * endpoint.completion_usd
    return Amount(pico(usd), prompt + max_tokens, 1)


def sample_id(prompt: Prompt) -> str:
    """Return an opaque name for the row.

    It makes two rows with the same words two requests.
    """
    return hashlib.sha256(f"{prompt.dataset}\n{prompt.id}".encode()).hexdigest()[:32]
