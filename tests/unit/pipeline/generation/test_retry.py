"""The one retry layer: what is repeated, how long it waits, when it gives up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pipeline.generation.ledger import LedgerEntry, State
from pipeline.generation.paid_client import Reply
from pipeline.generation.plan import RetryPolicy
from pipeline.generation.retry import Retry

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
