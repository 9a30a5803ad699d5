"""Rows answered by an engine's server on this machine, SGLang or vLLM: ids in, ids out, nothing is paid.

Guarantees: no more rows are in flight than --concurrency; an answer without its ids, or that contradicts itself, stops
the run and is no row. A resumed run asks what has no row in the shards: what was in flight when it stopped, and after a
kill what no shard held yet, is asked again, since it cost no money. What the server says of itself is among the
folder's settings, so that another engine, version, device, dtype, attention backend or model cannot go on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from pipeline.asking import StopError
from pipeline.engines.generation import EngineError, complete
from pipeline.engines.served import DIALECTS
from pipeline.engines.serving import Ask, EngineGoneError, Facts, Served
from pipeline.formats.parts import end_ids
from pipeline.outcomes import Fate, Outcome, Row
from pipeline.plan import Plan, row_seed, weights_sha256
from pipeline.reconstruct import Asked
from pipeline.records import Json, Reason, Refusal


class ServedEngine:
    """A server that is already running; its batches are its own, so each row is sent by itself."""

    batch = 1

    def __init__(self, plan: Plan, server: Served) -> None:
        self.workers = plan.concurrency
        self.asked = Asked(plan.route.api, plan.route.model, plan.sampling.max_tokens)
        self._plan, self._server = plan, server
        self._stop_ids = tuple(sorted(end_ids(plan.fmt)))

    @property
    def facts(self) -> Facts:
        """What the server said of itself."""
        return self._server.facts

    def refusal(self, row: Row) -> Refusal | None:
        """A prompt that leaves no room for max_tokens."""
        try:
            self._server.require_room(Ask(row.prompt_ids, self._plan.sampling))
        except EngineError as error:
            return Refusal(Reason.PROMPT_UNSUPPORTED, str(error), field="messages")
        return None

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """One outcome a row. Raises StopError where the server is gone, or gives no ids."""
        return [await self._one(row) for row in rows]

    async def _one(self, row: Row) -> Outcome:
        plan = self._plan
        sampling = replace(plan.sampling, seed=row_seed(plan.sampling.seed, row.prompt.id))
        try:
            found = await self._server.generate(Ask(row.prompt_ids, sampling, self._stop_ids))
        except EngineGoneError as error:
            raise StopError(f"{error}. Start it again, then give the same command") from error
        except EngineError as error:
            raise StopError(f"row {row.prompt.id}: {error}") from error
        model, api = plan.route.model, plan.route.api
        answer = complete(row.prompt_ids, found, plan.fmt, thinking=row.prompt.thinking, model=model, provider=api)
        return Outcome(row, Fate.ANSWERED, answer)

    def close(self) -> None:
        """What is in flight still comes in."""


async def open_served(stack: AsyncExitStack, plan: Plan) -> ServedEngine:
    """The engine of a served route, closed by `stack`. Raises StopError where none answers at --base-url."""
    start = f"Start one with: nox -s engine -- {plan.route.api} --model DIR"
    if plan.base_url is None:
        raise StopError(f"the {plan.route.api} route needs --base-url URL. {start}")
    server = Served(DIALECTS[plan.route.api](), plan.base_url, in_flight=plan.concurrency)
    try:
        return ServedEngine(plan, await stack.enter_async_context(server))
    except EngineError as error:
        raise StopError(f"{error}. {start}") from error


async def provenance(engine: ServedEngine) -> dict[str, Json]:
    """What a folder is begun with beside the plan's settings.

    The weights are hashed where the server's own directory lies on this machine, as it does but behind a tunnel.
    """
    facts = engine.facts
    folder = None if facts.weights is None else Path(facts.weights)
    here = folder is not None and folder.is_absolute() and folder.is_dir()
    digest = await asyncio.to_thread(weights_sha256, folder) if here and folder is not None else None
    return {"weights_sha256": digest, "engine": facts.document()}
