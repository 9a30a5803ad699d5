"""Ask again what was turned away, under a rate limit.

`RetryPolicy` (in `plan.py`) says how often and how long. `Retry` repeats one request, `RateLimiter` bounds how many are
in flight, and `RetryingClient` is a `PaidClient` behind both.

Guarantees: only a request that was certainly not billed is repeated, and only here: the SDK's own retries are off. A
wait that the provider names is kept; one above `longest` leaves the request to a later run. All other waits grow
exponentially, with jitter. Never more than --concurrency requests are in flight. Rows in a row that are turned away at
every attempt stop the run, since the provider is down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_attempt, wait_random_exponential

from pipeline.generation.billing import Judge
from pipeline.generation.budget import Amount
from pipeline.generation.ledger import Request
from pipeline.generation.outcome import StopError
from pipeline.generation.paid_client import PaidClient, Reply
from pipeline.generation.plan import RetryPolicy
from pipeline.records import Refusal

# A provider that turns away this many attempts in a row is down: three rows at six attempts each.
MOST_TURNED_AWAY_IN_A_ROW = 18


class RetryingClient:
    """A `PaidClient` that retries, for any number of tasks."""

    def __init__(self, client: PaidClient, policy: RetryPolicy, concurrency: int) -> None:
        self._client, self._policy = client, policy
        self._limiter = RateLimiter(concurrency)
        self._closing = asyncio.Event()
        self._retry = Retry(policy, lambda seconds: pause(seconds, self._closing), self._closing.is_set)
        self._given_up = 0

    async def ask(
        self, request: Request, worst: Amount, judge: Judge | None = None, withheld: Refusal | None = None
    ) -> Reply:
        """Return the last reply to a request.

        `again` is still set where no attempt got an answer. Raises StopError, RefusedError where it is `withheld`.
        """

        async def attempt() -> Reply:
            entered = await self._limiter.enter()
            try:
                reply = await self._client.ask(request, worst, judge, withheld)
            finally:
                self._limiter.leave()
            if reply.again:
                self._limiter.turned_away(entered, min(reply.wait or 0.0, self._policy.longest))
            elif reply.sent:
                self._limiter.answered()
            return reply

        reply = await self._retry(attempt)
        self._given_up = self._given_up + 1 if reply.again and not self._closing.is_set() else 0
        if self._given_up * self._policy.attempts >= MOST_TURNED_AWAY_IN_A_ROW:
            wait = f", asking for {reply.wait:.0f} s of patience" if reply.wait else ""
            raise StopError(
                f"{self._given_up} rows in a row were turned away at every attempt, the last so: {reply.why}{wait}."
                " Run the same command again later: nothing that was answered is asked again"
            )
        return reply

    def close(self) -> None:
        """Send nothing more."""
        self._client.close()
        self._limiter.close()
        self._closing.set()


class Retry:
    """Repeat a request until it is answered, exhausted or closed."""

    def __init__(
        self, policy: RetryPolicy, sleep: Callable[[float], Awaitable[None]], closed: Callable[[], bool]
    ) -> None:
        self._policy = policy
        self._sleep = sleep
        self._closed = closed
        self._jitter = wait_random_exponential(multiplier=policy.first, max=policy.longest)

    async def __call__(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the last reply of `ask`.

        `again` is still set where no attempt got an answer. Raises what `ask` raises.
        """

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
        if self._closed() or stop_after_attempt(self._policy.attempts)(state):
            return True
        return (_last_reply(state).wait or 0.0) > self._policy.longest

    def _wait(self, state: RetryCallState) -> float:
        named = _last_reply(state).wait
        jitter = self._jitter(state)
        return jitter if named is None else max(named, min(jitter, self._policy.longest))


def _last_reply(state: RetryCallState) -> Reply:
    if state.outcome is None:
        raise RuntimeError("asked about a request that was not tried yet")
    reply: Reply = state.outcome.result()
    return reply


class RateLimiter:
    """Slots for the requests in flight of one event loop.

    Never more than `most`, and none before a wait that the provider named is over. Additive increase and multiplicative
    decrease (Chiu and Jain 1989): a refusal halves the limit, once for all that were in flight together; each answer
    adds one over the limit. Call `enter` before a request and `leave` after it.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._in_flight = 0
        self._clock = clock
        self._open_at = 0.0
        self._halved_at = -1.0
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def limit(self) -> int:
        """Number of requests that may be in flight now."""
        return max(1, int(self._limit))

    async def enter(self) -> float:
        """Wait for a slot; return its time, for `turned_away`.

        Returns at once when closed.
        """
        while not self._closed and (self._in_flight >= self.limit or self._clock() < self._open_at):
            await pause(max(self._open_at - self._clock(), 0.0) or None, self._changed)
        self._in_flight += 1
        return self._clock()

    def leave(self) -> None:
        """Give the slot back."""
        self._in_flight -= 1
        self._wake()

    def answered(self) -> None:
        """Raise the limit after an answer."""
        self._limit = min(self._limit + 1 / self._limit, float(self._most))

    def turned_away(self, entered: float, wait: float) -> None:
        """Lower the limit, and hold all requests for `wait` seconds.

        `entered` is the time at which the request that was turned away got its slot.
        """
        self._open_at = max(self._open_at, self._clock() + wait)
        if entered > self._halved_at:
            self._limit = max(self._limit / 2, 1.0)
            self._halved_at = self._clock()

    def close(self) -> None:
        """Let all that wait for a slot go on."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        # A fresh event each time: a task that looked before the change finds its own event set.
        self._changed.set()
        self._changed = asyncio.Event()


async def pause(seconds: float | None, until: asyncio.Event) -> None:
    """Wait for `until`, but no longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        return
