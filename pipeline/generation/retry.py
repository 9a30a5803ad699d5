"""The one retry layer: a request that was turned away free of charge is asked again after a wait.

Guarantees: only what was certainly not billed is repeated; the wait that a provider names is kept, and where it names
more than `longest` the request is left to a later run; all else waits exponentially longer, with jitter. The SDK's own
retries are off.

Requests in their turn: as many in flight as the other side bears, again where one was turned away for now.

Guarantees: never more in flight than --concurrency; only what certainly was not billed is repeated; where rows in a row
are turned away at every attempt the run stops, since nobody answers any more.

How many requests may be in flight: fewer when the provider turns some away, more again as it answers.

Guarantees: never more than the most that was asked for, and none before a wait that the provider named is over.
Additive increase and multiplicative decrease (Chiu and Jain 1989): a refusal halves the number, once for all that were
in flight together; each answer adds its part of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_attempt, wait_random_exponential

from pipeline.generation.billing import Judge
from pipeline.generation.budget import Amount
from pipeline.generation.ledger import Request
from pipeline.generation.paid_client import PaidClient, Reply, StopError
from pipeline.generation.plan import RetryPolicy


class Retry:
    """Asks until there is an answer, an attempt is the last, or `closed` says that the run is stopping."""

    def __init__(
        self, patience: RetryPolicy, sleep: Callable[[float], Awaitable[None]], closed: Callable[[], bool]
    ) -> None:
        self._patience = patience
        self._sleep = sleep
        self._closed = closed
        self._jitter = wait_random_exponential(multiplier=patience.first, max=patience.longest)

    async def __call__(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """The last reply; `again` is still set where no attempt got an answer. Raises what `ask` raises."""

        async def attempt() -> Reply:  # tenacity awaits what it can see to be a coroutine function
            return await ask()

        retrying = AsyncRetrying(
            retry=retry_if_result(lambda reply: reply.again),
            stop=self._is_last,
            wait=self._wait,
            sleep=self._sleep,
            retry_error_callback=_last_reply,
            reraise=True,
        )
        reply: Reply = await retrying(attempt)
        return reply

    def _is_last(self, state: RetryCallState) -> bool:
        if self._closed() or stop_after_attempt(self._patience.attempts)(state):
            return True
        return (_last_reply(state).wait or 0.0) > self._patience.longest

    def _wait(self, state: RetryCallState) -> float:
        named = _last_reply(state).wait
        jitter = self._jitter(state)
        return jitter if named is None else max(named, min(jitter, self._patience.longest))


def _last_reply(state: RetryCallState) -> Reply:
    if state.outcome is None:
        raise RuntimeError("asked about a request that was not tried yet")
    reply: Reply = state.outcome.result()
    return reply


# Who turns so many attempts in a row away is down: three rows at six attempts each.
MOST_TURNED_AWAY_IN_A_ROW = 18


class RetryingClient:
    """Asks through one desk, from any number of tasks."""

    def __init__(self, desk: PaidClient, patience: RetryPolicy, concurrency: int) -> None:
        self._desk, self._patience = desk, patience
        self._throttle = RateLimiter(concurrency)
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


class RateLimiter:
    """Slots for requests of one event loop. Use `enter` and `leave` around a request."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._flying = 0
        self._clock = clock
        self._open_at = 0.0
        self._halved_at = -1.0
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return max(1, int(self._limit))

    async def enter(self) -> float:
        """Wait for a slot; the time at which it was got, for `turned_away`. Returns at once when closed."""
        while not self._closed and (self._flying >= self.limit or self._clock() < self._open_at):
            await self.sleep(max(self._open_at - self._clock(), 0.0) or None)
        self._flying += 1
        return self._clock()

    def leave(self) -> None:
        """Give the slot back."""
        self._flying -= 1
        self._wake()

    def answered(self) -> None:
        """An answer came: a little more may be in flight."""
        self._limit = min(self._limit + 1 / self._limit, float(self._most))

    def turned_away(self, entered: float, wait: float) -> None:
        """A request that got its slot at `entered` was turned away; all wait `wait` seconds."""
        self._open_at = max(self._open_at, self._clock() + wait)
        if entered > self._halved_at:
            self._limit = max(self._limit / 2, 1.0)
            self._halved_at = self._clock()

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        self._wake()

    async def sleep(self, seconds: float | None) -> None:
        """Until something changed, or for `seconds` at most."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        # A fresh event each time: whoever looked before the change finds its own event set.
        self._changed.set()
        self._changed = asyncio.Event()
