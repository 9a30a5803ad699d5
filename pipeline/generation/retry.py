"""The one retry layer: a request that was turned away free of charge is asked again after a wait.

Guarantees: only what was certainly not billed is repeated; the wait that a provider names is kept, and where it names
more than `longest` the request is left to a later run; all else waits exponentially longer, with jitter. The SDK's own
retries are off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_attempt, wait_random_exponential

from pipeline.generation.paid_client import Reply
from pipeline.generation.plan import Patience


class Retry:
    """Asks until there is an answer, an attempt is the last, or `closed` says that the run is stopping."""

    def __init__(
        self, patience: Patience, sleep: Callable[[float], Awaitable[None]], closed: Callable[[], bool]
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
