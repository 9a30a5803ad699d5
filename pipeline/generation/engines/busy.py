"""How long an engine of our own was busy, and whose time that was.

Guarantees: the shares of all requests add up to the seconds in which at least one was in flight; those that are in
flight together share each second alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Share:
    """Seconds of one request, once it is over."""

    seconds: float = 0.0


class Busy:
    """A clock that runs while something is in flight."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._flying = 0
        self._each = 0.0
        self._seen = 0.0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """For the length of one request."""
        found = Share()
        begun = self._passed()
        self._flying += 1
        try:
            yield found
        finally:
            found.seconds = self._passed() - begun
            self._flying -= 1

    def _passed(self) -> float:
        """Seconds until now of whatever was in flight all the time."""
        now = self._clock()
        if self._flying:
            self._each += (now - self._seen) / self._flying
        self._seen = now
        return self._each
