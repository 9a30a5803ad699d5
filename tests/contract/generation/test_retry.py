"""Retries, the rate limit, and a client with both over a real ledger."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.generation.budget import Amount, Budget
from pipeline.generation.engines.openrouter import HttpAnswer
from pipeline.generation.ledger import Ledger, LedgerEntry, Request, State
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.outcome import StopError
from pipeline.generation.paid_client import PaidClient, Reply
from pipeline.generation.plan import RetryPolicy
from pipeline.generation.retry import RateLimiter, Retry, RetryingClient
from pipeline.records import Route

pytestmark = pytest.mark.contract

ENTRY = LedgerEntry("a", 1, State.FAILED_FREE, 100)
TURNED_AWAY, ANSWERED = Reply(ENTRY, sent=True, again=True, why="status 429"), Reply(ENTRY, sent=True)


@dataclass
class Script:
    """Replies in order, and the waits between them."""

    replies: list[Reply]
    waits: list[float] = field(default_factory=list)
    asked: int = 0
    closes_after: int = 99

    async def ask(self) -> Reply:
        self.asked += 1
        return self.replies[min(self.asked, len(self.replies)) - 1]

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def run(self, patience: RetryPolicy) -> Reply:
        retry = Retry(patience, self.sleep, lambda: self.asked >= self.closes_after)
        return asyncio.run(retry(self.ask))


def named(seconds: float) -> Reply:
    return Reply(ENTRY, sent=True, again=True, wait=seconds)


def test_an_answer_is_not_asked_again() -> None:
    script = Script([ANSWERED])

    assert ANSWERED is script.run(RetryPolicy())
    assert (1, []) == (script.asked, script.waits)


def test_what_was_turned_away_is_asked_until_it_is_answered() -> None:
    script = Script([TURNED_AWAY, TURNED_AWAY, ANSWERED])

    assert ANSWERED is script.run(RetryPolicy(first=1.0))
    assert 3 == script.asked
    assert 0 <= script.waits[0] <= 1
    assert 0 <= script.waits[1] <= 2


def test_the_last_attempt_is_the_last() -> None:
    script = Script([TURNED_AWAY])

    assert TURNED_AWAY is script.run(RetryPolicy(attempts=4))
    assert (4, 3) == (script.asked, len(script.waits))


def test_waits_grow_no_longer_than_the_longest() -> None:
    script = Script([TURNED_AWAY])
    script.run(RetryPolicy(attempts=12, first=1.0, longest=3.0))

    assert max(script.waits) <= 3.0


def test_a_wait_that_is_named_is_kept() -> None:
    script = Script([named(30.0), ANSWERED])

    assert ANSWERED is script.run(RetryPolicy(longest=60.0))
    assert [30.0] == script.waits


def test_a_wait_longer_than_the_longest_is_left_to_a_later_run() -> None:
    script = Script([named(3600.0), ANSWERED])

    assert script.run(RetryPolicy(longest=60.0)).again
    assert (1, []) == (script.asked, script.waits)


def test_a_run_that_is_stopping_asks_nothing_again() -> None:
    script = Script([TURNED_AWAY], closes_after=2)

    assert script.run(RetryPolicy()).again
    assert 2 == script.asked


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


def ask_all(folder: Path, provider: Provider, rows: int, concurrency: int) -> list[Reply]:
    async def work() -> list[Reply]:
        writer = LedgerWriter(ledger)
        try:
            client = RetryingClient(PaidClient(writer, Budget(), provider), QUICK, concurrency)
            requests = [
                Request(str(row), "run-1", Route("emulator", "m", "p"), str(row), b"{}", 100) for row in range(rows)
            ]
            return list(await asyncio.gather(*(client.ask(request, WORST) for request in requests)))
        finally:
            await writer.close()

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


def test_a_row_turned_away_is_asked_until_it_is_answered(tmp_path: Path) -> None:
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


def test_three_rows_turned_away_at_every_attempt_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(StopError, match="3 rows in a row were turned away at every attempt, the last so: status 429"):
        ask_all(tmp_path, Provider(100), 3, 3)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_more_are_in_flight_than_the_most_that_was_asked_for() -> None:
    async def work() -> int:
        limiter, most, flying = RateLimiter(3), 0, 0

        async def one() -> None:
            nonlocal most, flying
            await limiter.enter()
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0.001)
            flying -= 1
            limiter.leave()

        await asyncio.gather(*(one() for _ in range(20)))
        return most

    assert 3 == asyncio.run(work())


def test_a_refusal_halves_the_limit_once_for_all_in_flight() -> None:
    clock = Clock()
    limiter = RateLimiter(64, clock=clock)
    entered = clock.now
    clock.now += 1
    for _ in range(64):
        limiter.turned_away(entered, 0.0)
    once = limiter.limit
    clock.now += 1
    limiter.turned_away(clock.now, 0.0)

    assert (32, 16) == (once, limiter.limit)


def test_answers_bring_the_number_back_one_a_round() -> None:
    limiter = RateLimiter(10, clock=Clock())
    limiter.turned_away(101.0, 0.0)
    for _ in range(5):
        limiter.answered()
    after_a_round = limiter.limit
    for _ in range(100):
        limiter.answered()

    assert (5, 10) == (after_a_round, limiter.limit)


def test_one_is_always_let_through() -> None:
    limiter, clock = RateLimiter(2), Clock()
    for number in range(9):
        limiter.turned_away(clock.now + number * 1e9, 0.0)

    assert 1 == limiter.limit


def test_nothing_is_sent_before_a_wait_that_was_named_is_over() -> None:
    async def work() -> float:
        limiter = RateLimiter(4)
        begun = await limiter.enter()
        limiter.leave()
        limiter.turned_away(begun, 0.05)
        return await limiter.enter() - begun

    assert asyncio.run(work()) >= 0.05


def test_closing_lets_all_that_wait_go_on() -> None:
    async def work() -> bool:
        limiter = RateLimiter(1)
        await limiter.enter()
        waiting = asyncio.create_task(limiter.enter())
        await asyncio.sleep(0)
        limiter.close()
        await asyncio.wait_for(waiting, 1)
        return waiting.done()

    assert asyncio.run(work())
