"""Each fault does to the bytes what its name says, and the run's own reading meets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from harness.emulator.faults import FAULTS
from pipeline.generation.billing import bill_of

BODY = b'{"provider":"P","choices":[{"native_finish_reason":"stop"}],"usage":{"cost":0.036,"is_byok":false}}'


def damaged(name: str) -> bytes:
    async def chunks() -> AsyncIterator[bytes]:
        yield BODY

    async def work() -> bytes:
        return b"".join([chunk async for chunk in FAULTS[name].body(chunks())])

    return asyncio.run(work())


def test_byok_is_booked_at_what_upstream_bills() -> None:
    assert 36 * 10**9 == bill_of(damaged("byok")).cost_pico


@pytest.mark.parametrize(
    "name, shown",
    [("cost-string", "cost: '0.036', is_byok: 'False'"), ("negative-cost", "cost: '-0.5', is_byok: 'False'")],
)
def test_a_cost_that_lies_is_unread(name: str, shown: str) -> None:
    assert (None, shown) == (bill_of(damaged(name)).cost_pico, bill_of(damaged(name)).unread)


def test_escapes_stand_in_what_a_provider_says_of_itself() -> None:
    read = json.loads(damaged("escape"))

    assert ("\x1b]0;owned\x07\x1b[2J\rallowedP") == read["provider"]
