"""Rows answered by a hosted API, or by the emulator of one: through the ledger, the budget and one pinned endpoint.

Guarantees: what cannot be proven whatever the answer is refused before it is paid for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from pipeline.asking import Desk, StopError
from pipeline.billing import completion_of
from pipeline.budget import Amount
from pipeline.engines.catalog import CatalogError, Endpoint, fetch_endpoint
from pipeline.engines.openrouter import NoAnswerError, OpenRouter, encode_body
from pipeline.engines.request import request_body
from pipeline.ledger import Request, State, identity
from pipeline.money import pico
from pipeline.outcomes import Fate, Outcome, Row, guarded
from pipeline.places import special_text
from pipeline.plan import Plan, row_seed
from pipeline.reconstruct import Asked
from pipeline.records import Prompt, Reason, Refusal


class HostedEngine:
    """Asks one endpoint."""

    batch = 1

    def __init__(self, plan: Plan, endpoint: Endpoint, desk: Desk, run: str) -> None:
        self.workers = plan.concurrency
        self.asked = Asked(endpoint.provider_name, plan.route.model, plan.sampling.max_tokens)
        self._plan = plan
        self._endpoint = endpoint
        self._desk = desk
        self._run = run

    def refusal(self, row: Row) -> Refusal | None:
        """A prompt too long for the endpoint, or one that spells a control token and whose served ids stay unknown."""
        fmt, sampling = self._plan.fmt, self._plan.sampling
        wanted = len(row.prompt_ids) + sampling.max_tokens
        if wanted > self._endpoint.context_length:
            detail = f"prompt and max_tokens need {wanted} tokens, the endpoint takes {self._endpoint.context_length}"
            return Refusal(Reason.PROMPT_UNSUPPORTED, detail, field="messages")
        return None if sampling.return_token_ids else special_text(fmt, row.prompt)

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """One outcome a row. Raises StopError."""
        return [await self._ask(row) for row in rows]

    def close(self) -> None:
        """Send nothing more."""
        self._desk.close()

    async def _ask(self, row: Row) -> Outcome:
        made = guarded(lambda: self._request(row))
        if isinstance(made, Refusal):
            return Outcome(row, Fate.ANSWERED, made, sent=False)
        request, worst = made
        reply = await self._desk.ask(request, worst)
        if reply.again:
            return Outcome(row, Fate.AGAIN, request=request.identity, sent=reply.sent)
        raw = reply.entry.answer
        if raw is None or reply.entry.state is State.UNKNOWN:
            return Outcome(row, Fate.UNKNOWN, request=request.identity, sent=reply.sent)
        answer = guarded(lambda: completion_of(raw, stream=self._plan.route.stream))
        return Outcome(row, Fate.ANSWERED, answer, request.identity, reply.sent)

    def _request(self, row: Row) -> tuple[Request, Amount]:
        plan, prompt = self._plan, row.prompt
        sampling = replace(plan.sampling, seed=row_seed(plan.sampling.seed, prompt.id))
        body = request_body(
            *(prompt, plan.route, sampling, plan.tool_mode, plan.fmt, sample_id(prompt)),
            supported=self._endpoint.supported_parameters,
        )
        worst = worst_case(len(row.prompt_ids), plan.sampling.max_tokens, self._endpoint)
        key = identity(plan.route, body, run=self._run)  # type: ignore[arg-type]  # request_body's values are JSON
        request = Request(key, self._run, plan.route, prompt.id, encode_body(body), worst.pico, prompt.dataset)
        return request, worst


async def find_endpoint(client: OpenRouter, plan: Plan) -> Endpoint:
    """The endpoint that the route pins, if it takes this plan. Raises StopError."""
    try:
        endpoint = await fetch_endpoint(client, plan.route)
    except NoAnswerError as error:
        start = "" if plan.route.api == "openrouter" else " Start an emulator with: python -m harness.emulator --port 0"
        raise StopError(f"{error}{start}") from error
    except CatalogError as error:
        raise StopError(str(error)) from error
    most = endpoint.max_completion_tokens
    if most is not None and plan.sampling.max_tokens > most:
        raise StopError(f"{endpoint.tag} gives at most {most} tokens: use --max-tokens {most} or less")
    return endpoint


def worst_case(prompt_tokens: int, max_tokens: int, endpoint: Endpoint) -> Amount:
    """The most a request may cost and count.

    Providers' own templates were seen to add up to 94 tokens to a prompt with tools; half as much again and 128 is
    above all that was recorded.
    """
    prompt = prompt_tokens + prompt_tokens // 2 + 128
    usd: Decimal = endpoint.request_usd + prompt * endpoint.prompt_usd + max_tokens * endpoint.completion_usd
    return Amount(pico(usd), prompt + max_tokens, 1)


def sample_id(prompt: Prompt) -> str:
    """A name for the row that says nothing of it: two rows with the same words are still two requests."""
    return hashlib.sha256(f"{prompt.dataset}\n{prompt.id}".encode()).hexdigest()[:32]
