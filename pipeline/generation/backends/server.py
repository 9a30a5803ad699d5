"""Answer rows by an engine's server, SGLang or vLLM.

Ids go in and ids come out, through the ledger; no money is paid. Guarantees: never more than --concurrency rows are in
flight. An answer is in the ledger before it is used and is not asked for again. One that contradicts itself is no row
and is left to a later run; one without ids ends the run. What was in flight when a run or the server was killed is
asked again, since it cost nothing but the engine's time, which the ledger keeps beside each answer. What the server
says of itself is among the folder's settings, so that another engine, version, device, dtype, attention backend or
model cannot go on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from pipeline.base.files import weights_sha256
from pipeline.base.redaction import redact
from pipeline.generation.billing import (
    CLIENT_CLOSED,
    LATER,
    SERVER_ERROR,
    TIMED_OUT,
    Bill,
    Judgement,
    Verdict,
    error_text,
)
from pipeline.generation.budget import Amount
from pipeline.generation.coverage import withheld
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.output import EngineError, complete
from pipeline.generation.engines.server import (
    MOST_OF_AN_ERROR,
    OK,
    EngineDialect,
    EngineFacts,
    EngineServer,
    NoIdsError,
    ServerRequest,
    generation_of,
)
from pipeline.generation.ledger import LedgerAnswer, Request, State, identity
from pipeline.generation.outcome import Outcome, Row, Status, StopError, refusing_errors
from pipeline.generation.paid_client import Reply
from pipeline.generation.plan import Plan, row_seed
from pipeline.generation.retry import RetryingClient
from pipeline.proof.reconstruct import Expected
from pipeline.records import Completion, Json, Reason, Refusal, RefusedError

OWN_FAULT: Final = frozenset({400, 413, 422})
"""Statuses of a request that the server cannot take."""


class ServerBackend:
    """`Backend` over an engine's server that is already running.

    The server makes its own batches, so each row is sent by itself.
    """

    batch = 1

    def __init__(self, plan: Plan, server: EngineServer, client: RetryingClient, run: str) -> None:
        self.workers = plan.concurrency
        self.expected = Expected(plan.route.api, plan.route.model, plan.sampling.max_tokens)
        self._plan, self._server, self._client, self._run = plan, server, client, run
        self._stop_ids = tuple(sorted(plan.fmt.end_ids))

    def refusal(self, row: Row) -> Refusal | None:
        """Refuse a prompt that leaves no room for max_tokens."""
        try:
            self._server.require_room(ServerRequest(row.prompt_ids, self._plan.sampling))
        except EngineError as error:
            return Refusal(Reason.PROMPT_UNSUPPORTED, str(error), field="messages")
        return None

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """Return one outcome a row.

        Raises StopError where the server does not answer any more, or an answer has no ids.
        """
        return [await self._outcome(row) for row in rows]

    async def _outcome(self, row: Row) -> Outcome:
        sampling = self._plan.sampling
        seeded = replace(sampling, seed=row_seed(sampling.seed, row.prompt.id))
        asked = ServerRequest(row.prompt_ids, seeded, self._stop_ids)
        worst = Amount(0, len(row.prompt_ids) + sampling.max_tokens, 1)
        request = refusing_errors(lambda: self._request(row, asked, worst))
        if isinstance(request, Refusal):
            return Outcome(row, Status.ANSWERED, request, sent=False)

        def judge(answer: LedgerAnswer) -> Judgement:
            judgement = judgement_of(answer, self._server.dialect, asked)
            return replace(judgement, refuses=f"row {row.prompt.id}: {judgement.refuses}")

        try:
            reply = await self._client.ask(request, worst, judge, withheld(row.prompt, self._plan))
        except RefusedError as error:
            return Outcome(row, Status.ANSWERED, error.refusal, sent=False)
        if reply.again:
            return Outcome(row, Status.AGAIN, request=request.identity, sent=reply.sent)
        if reply.entry.answer is None or reply.entry.state is State.UNKNOWN:
            return Outcome(row, Status.UNKNOWN, request=request.identity, sent=reply.sent)
        answer = refusing_errors(lambda: self._completion(row, asked, reply))
        return Outcome(row, Status.ANSWERED, answer, request.identity, reply.sent, cost=reply.entry.cost_pico)

    def _request(self, row: Row, asked: ServerRequest, worst: Amount) -> Request:
        """Return the ledger's request.

        Its identity holds the row's id, since equal prompts under two ids are two draws, and not the served name.
        """
        plan, prompt = self._plan, row.prompt
        body: dict[str, Json] = {"row": prompt.id, "body": self._server.dialect.body(asked, plan.route.model)}
        key = identity(plan.route, body, run=self._run)
        sent = self._server.body(asked)
        return Request(key, self._run, plan.route, prompt.id, sent, 0, prompt.dataset, worst.tokens)

    def _completion(self, row: Row, asked: ServerRequest, reply: Reply) -> Completion:
        plan, raw = self._plan, reply.entry.answer
        if raw is None or raw.status != OK:
            raise RefusedError(Reason.UPSTREAM_ERROR, "" if raw is None else error_text(raw), field="status")
        output = generation_of(self._server.dialect, asked, raw.raw)
        model, api = plan.route.model, plan.route.api
        return complete(row.prompt_ids, output, plan.fmt, thinking=row.prompt.thinking, model=model, provider=api)

    def close(self) -> None:
        """Send nothing more; what is in flight still comes in."""
        self._client.close()


def judgement_of(answer: LedgerAnswer, dialect: EngineDialect, asked: ServerRequest) -> Judgement:
    """Judge an engine's answer; nothing that it does is billed.

    An answer that contradicts itself is asked for again, and left to a later run where it comes each time: no row is
    refused for what an engine got wrong. One that this program fails to judge is kept, and its row is `internal_error`.
    An answer without ids ends the run, since all others will have none. An error status that faults this one request
    sets its row aside; one that faults all of them ends the run.
    """
    free, name = Bill(0, len(asked.prompt), 0), dialect.name
    if (status := answer.status) != OK:
        later = status in LATER or status in {TIMED_OUT, CLIENT_CLOSED} or status >= SERVER_ERROR
        verdict = Verdict.REFUSED if status in OWN_FAULT else Verdict.LATER if later else Verdict.HOPELESS
        return Judgement(verdict, free, error_text(answer), f"{name} refuses this run, with status")
    try:
        output = generation_of(dialect, asked, answer.raw)
    except NoIdsError as error:
        return Judgement(Verdict.HOPELESS, free, redact(str(error), MOST_OF_AN_ERROR), f"an answer of {name} is none:")
    except EngineError as error:
        return Judgement(Verdict.LATER, free, f"{OK}: {redact(str(error), MOST_OF_AN_ERROR)}")
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a bug of ours, no fault of the engine's: `_completion` meets it again and says where
        return Judgement(Verdict.KEPT, free)
    return Judgement(Verdict.KEPT, replace(free, completion_tokens=len(output.ids)))


async def open_server(stack: AsyncExitStack, plan: Plan) -> EngineServer:
    """Connect to the server at --base-url; `stack` closes it.

    Raises StopError where none answers.
    """
    start = f"Start one with: nox -s engine -- {plan.route.api} --model DIR"
    if plan.base_url is None:
        raise StopError(f"the {plan.route.api} route needs --base-url URL. {start}")
    server = EngineServer(DIALECTS[plan.route.api](), plan.base_url, in_flight=plan.concurrency)
    try:
        return await stack.enter_async_context(server)
    except EngineError as error:
        raise StopError(f"{error}. {start}") from error


async def provenance(facts: EngineFacts) -> dict[str, Json]:
    """Return the server's part of a folder's settings.

    The weights are hashed where the server's own directory lies on this machine, as it does but behind a tunnel. Where
    it does not, or holds none of the kind that is hashed, the server's names for them stand instead.
    """
    folder = None if facts.weights is None else Path(facts.weights)
    here = folder is not None and folder.is_absolute() and any(folder.glob("*.safetensors"))
    digest = await asyncio.to_thread(weights_sha256, folder) if here and folder is not None else None
    names: dict[str, Json] = {} if digest else {"served_model": facts.model, "served_weights": facts.weights}
    return {"weights_sha256": digest, "engine": facts.document() | names}
