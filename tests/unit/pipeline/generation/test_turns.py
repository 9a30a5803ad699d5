"""Requests in their turn, over a real ledger: bounded in flight, again after a refusal, and an end where all are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline.generation.budget import Amount, Budget
from pipeline.generation.engines.openrouter import HttpAnswer
from pipeline.generation.ledger import Ledger, Request, State
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.paid_client import PaidClient, Reply, StopError
from pipeline.generation.plan import RetryPolicy
from pipeline.generation.retry import RetryingClient
from pipeline.records import Route

WORST = Amount(100, 10, 1)
QUICK = RetryPolicy(attempts=6, first=0.001, longest=0.002)
GOOD = b'{"id":"gen-1-a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"cost":0.000000000012}}'


class Provider:
    """Turns the first `turned_away` requests away, then answers; counts how many are in flight."""

    def __init__(self, turned_away: int) -> None:
        self.turned_away, self.asked, self.flying, self.most = turned_away, 0, 0, 0

    async def send(self, _: bytes) -> HttpAnswer:
        self.asked += 1
        self.flying += 1
        self.most = max(self.most, self.flying)
        status = 429 if self.asked <= self.turned_away else 200
        await asyncio.sleep(0.001)
        self.flying -= 1
        return HttpAnswer(status, GOOD if status == 200 else b"{}", "application/json", None, None)


def request(row: str) -> Request:
    return Request(row, "run-1", Route("emulator", "m", "p"), row, b"{}", WORST.pico)


def ask_all(folder: Path, provider: Provider, rows: int, concurrency: int) -> list[Reply]:
    async def work() -> list[Reply]:
        scribe = LedgerWriter(ledger)
        try:
            turns = RetryingClient(PaidClient(scribe, Budget(), provider), QUICK, concurrency)
            requests = [
                Request(str(row), "run-1", Route("emulator", "m", "p"), str(row), b"{}", 100) for row in range(rows)
            ]
            return list(await asyncio.gather(*(turns.ask(request, WORST) for request in requests)))
        finally:
            await scribe.close()

    ledger = Ledger(folder / "ledger.sqlite")
    try:
        return asyncio.run(work())
    finally:
        ledger.close()


def test_no_more_are_in_flight_than_allowed_and_all_are_answered(tmp_path: Path) -> None:
    provider = Provider(0)
    replies = ask_all(tmp_path, provider, 12, 3)

    assert [State.SETTLED] * 12 == [reply.entry.state for reply in replies]
    assert (12, 3) == (provider.asked, provider.most)


def test_one_that_is_turned_away_is_asked_again_until_it_is_answered(tmp_path: Path) -> None:
    provider = Provider(5)
    (reply,) = ask_all(tmp_path, provider, 1, 3)

    assert (State.SETTLED, False, 6) == (reply.entry.state, reply.again, provider.asked)


def test_at_its_last_attempt_a_row_is_left_to_a_later_run(tmp_path: Path) -> None:
    (reply,) = ask_all(tmp_path, Provider(100), 1, 3)

    assert (State.FAILED_FREE, True, "status 429: 2 bytes without an error message") == (
        reply.entry.state,
        reply.again,
        reply.why,
    )


def test_three_rows_in_a_row_turned_away_at_every_attempt_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(StopError, match="3 rows in a row were turned away at every attempt, the last so: status 429"):
        ask_all(tmp_path, Provider(100), 3, 3)
