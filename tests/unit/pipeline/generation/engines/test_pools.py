"""Connections in pools: few requests use one, many use as many as they need, and all are closed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from pipeline.generation.engines.openrouter import CONNECTIONS, Pools


@dataclass
class Made:
    """A client that counts."""

    number: int
    closed: list[int]

    async def close(self) -> None:
        self.closed.append(self.number)


@dataclass
class Maker:
    made: list[Made] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def __call__(self) -> Made:
        self.made.append(Made(len(self.made), self.closed))
        return self.made[-1]


def test_requests_that_follow_each_other_use_one_pool() -> None:
    maker = Maker()
    pools = Pools(maker)
    for _ in range(5 * CONNECTIONS):
        with pools.use() as client:
            assert 0 == client.number

    assert 1 == len(maker.made)


def test_requests_at_once_use_a_pool_for_every_so_many_and_the_first_with_room() -> None:
    maker = Maker()
    pools = Pools(maker)
    with ExitStack() as stack:
        used = [stack.enter_context(pools.use()).number for _ in range(2 * CONNECTIONS + 1)]
    with pools.use() as client:
        assert 0 == client.number

    assert [0] * CONNECTIONS + [1] * CONNECTIONS + [2] == used


def test_a_request_that_fails_gives_its_place_back() -> None:
    maker = Maker()
    pools = Pools(maker)
    for _ in range(3 * CONNECTIONS):
        with pytest.raises(ZeroDivisionError), pools.use() as client:
            _ = client.number / 0

    assert 1 == len(maker.made)


def test_all_are_closed() -> None:
    maker = Maker()
    pools = Pools(maker)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS + 1):
            stack.enter_context(pools.use())
    asyncio.run(pools.close())

    assert [0, 1] == maker.closed
