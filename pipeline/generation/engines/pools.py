"""Connections to one API in pools of a few: what a pool does for each request grows with its connections.

Guarantees: a request goes through the first pool that has room, so that few requests keep few connections; pools are
made as they are needed and share one TLS context. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

CONNECTIONS = 8
"""Of a pool."""


class Closing(Protocol):
    """A client that can be closed."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closing)


@dataclass(slots=True)
class _Pool(Generic[T]):
    client: T
    flying: int = 0


class Pools(Generic[T]):
    """Clients with a pool of `CONNECTIONS` each."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._pools: list[_Pool[T]] = []

    @contextmanager
    def use(self) -> Iterator[T]:
        """A client with a connection to spare, for the length of one request."""
        pool = next((pool for pool in self._pools if pool.flying < CONNECTIONS), None)
        if pool is None:
            pool = _Pool(self._make())
            self._pools.append(pool)
        pool.flying += 1
        try:
            yield pool.client
        finally:
            pool.flying -= 1

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.client.close()
