"""How many requests may be in flight: fewer when the provider turns some away, more again as it answers.

Guarantees: never more than the most that was asked for, and none before a wait that the provider named is over.
Additive increase and multiplicative decrease (Chiu and Jain 1989): a refusal halves the number, once for all that were
in flight together; each answer adds its part of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Throttle:
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
