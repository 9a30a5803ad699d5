"""Requests in their turn: as many in flight as the other side bears, again where one was turned away for now.

Guarantees: never more in flight than --concurrency; only what certainly was not billed is repeated; where rows in a row
are turned away at every attempt the run stops, since nobody answers any more.
"""

from __future__ import annotations

import asyncio

from pipeline.generation.billing import Judge
from pipeline.generation.budget import Amount
from pipeline.generation.ledger import Request
from pipeline.generation.paid_client import Desk, Reply, StopError
from pipeline.generation.plan import Patience
from pipeline.generation.retry import Retry
from pipeline.generation.throttle import Throttle

# Who turns so many attempts in a row away is down: three rows at six attempts each.
MOST_TURNED_AWAY_IN_A_ROW = 18


class Turns:
    """Asks through one desk, from any number of tasks."""

    def __init__(self, desk: Desk, patience: Patience, concurrency: int) -> None:
        self._desk, self._patience = desk, patience
        self._throttle = Throttle(concurrency)
        self._closing = asyncio.Event()
        self._retry = Retry(patience, self._pause, self._closing.is_set)
        self._given_up = 0

    async def ask(self, request: Request, worst: Amount, judge: Judge | None = None) -> Reply:
        """The last reply; `again` is still set where no attempt got an answer. Raises StopError."""
        reply = await self._retry(lambda: self._try(request, worst, judge))
        self._count_given_up(reply)
        return reply

    def close(self) -> None:
        """Send nothing more."""
        self._desk.close()
        self._throttle.close()
        self._closing.set()

    async def _try(self, request: Request, worst: Amount, judge: Judge | None) -> Reply:
        entered = await self._throttle.enter()
        try:
            reply = await self._desk.ask(request, worst, judge)
        finally:
            self._throttle.leave()
        if reply.again:
            self._throttle.turned_away(entered, min(reply.wait or 0.0, self._patience.longest))
        elif reply.sent:
            self._throttle.answered()
        return reply

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for a run that is stopping."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _count_given_up(self, reply: Reply) -> None:
        self._given_up = self._given_up + 1 if reply.again and not self._closing.is_set() else 0
        if self._given_up * self._patience.attempts >= MOST_TURNED_AWAY_IN_A_ROW:
            wait = f", asking for {reply.wait:.0f} s of patience" if reply.wait else ""
            raise StopError(
                f"{self._given_up} rows in a row were turned away at every attempt, the last so: {reply.why}{wait}."
                " Run the same command again later: nothing that was answered is asked again"
            )
