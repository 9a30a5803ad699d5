"""The ledger's thread: writes share a commit, and an answer that the disk refuses is spilled and never thrown away."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pipeline.generation.billing import Bill
from pipeline.generation.ledger import Ledger, LedgerAnswer, LedgerEntry, Request, State
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.ledger_writer import LedgerWriter, read_spill, spill
from pipeline.records import Route

pytestmark = pytest.mark.contract

PAID = Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow", stream=True)
ANSWER = LedgerAnswer(200, b'\n\n {"id": "gen-1-a", "usage": {"cost": 0.000012}}', {"complete": True}, "gen-1-a")


def request(name: str) -> Request:
    return Request(name, "run-1", PAID, f"row-{name}", b'{"model":"m"}', 100, "B4")


def nothing() -> None:
    """Reserve from no budget."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "state" / "ledger.sqlite")
    yield opened
    opened.close()


def claimed(ledger: Ledger, wanted: Request, *, resend: bool = False) -> LedgerEntry:
    with ledger.transaction():
        return ledger.claim(wanted, nothing, resend_unknown=resend)


def paid(ledger: Ledger, wanted: Request, cost: int) -> None:
    entry = claimed(ledger, wanted)
    with ledger.transaction():
        ledger.answer(entry, ANSWER)
    with ledger.transaction():
        ledger.settle(entry, cost, (10, 20))


def test_writes_that_arrive_together_share_one_commit(ledger: Ledger) -> None:
    commits: list[str] = []
    ledger._db.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)

    async def claim_many() -> list[LedgerEntry]:
        writer = LedgerWriter(ledger)
        wanted = [request(str(number)) for number in range(100)]
        entries = await asyncio.gather(
            *(writer.do(partial(Ledger.claim, request=each, hold=nothing)) for each in wanted)
        )
        await writer.close()
        return entries

    entries = asyncio.run(claim_many())

    assert 100 == len({entry.identity for entry in entries})
    assert len(commits) < 20


def test_a_refusing_operation_leaves_others_of_its_commit(ledger: Ledger) -> None:
    async def mixed() -> list[object]:
        writer = LedgerWriter(ledger)
        ghost = LedgerEntry("ghost", 1, State.RESERVED, 1)
        jobs = [
            writer.do(lambda led: led.claim(request("a"), nothing)),
            writer.do(lambda led: led.settle(ghost, 1)),
            writer.do(lambda led: led.claim(request("b"), nothing)),
        ]
        results: list[object] = list(await asyncio.gather(*jobs, return_exceptions=True))
        await writer.close()
        return results

    first, ghost, last = asyncio.run(mixed())

    assert isinstance(first, LedgerEntry)
    assert isinstance(ghost, LedgerError)
    assert isinstance(last, LedgerEntry)


def test_an_answer_that_meets_a_full_disk_is_spilled(tmp_path: Path) -> None:
    """The next run reads it in."""
    path = tmp_path / "ledger.sqlite"
    big = replace(ANSWER, raw=b"y" * 300_000)

    async def answer_on_a_full_disk(ledger: Ledger, entry: LedgerEntry) -> None:
        writer = LedgerWriter(ledger)
        ledger._db.execute("PRAGMA max_page_count = 20")  # what sqlite says then is what a full disk says
        try:
            await writer.keep(entry, big)
        finally:
            await writer.close()

    first = Ledger(path)
    entry = claimed(first, request("a"))
    with pytest.raises(LedgerError, match="disk is full"):
        asyncio.run(answer_on_a_full_disk(first, entry))
    first.close()

    second = Ledger(path)
    count = read_spill(second)
    again = claimed(second, request("a"))
    second.close()

    assert (1, State.ANSWERED, big) == (count, again.state, again.answer)
    assert [] == list(path.with_name("ledger.sqlite.spill").iterdir())


def test_a_spilled_answer_that_cannot_be_read_is_not_thrown_away(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    path = spill(ledger.path, claimed(ledger, request("a")), ANSWER)
    path.write_text("{")

    with pytest.raises(LedgerError, match="holds a paid answer"):
        read_spill(ledger)
    ledger.close()

    assert path.exists()


def test_a_spilled_answer_that_the_ledger_refuses_is_named(tmp_path: Path) -> None:
    """A spill file of 1.7 GB once stopped every later run, and no message said which file."""
    path, big = tmp_path / "ledger.sqlite", replace(ANSWER, raw=b"x" * 5000)
    first = Ledger(path)
    entry = claimed(first, request("a"))
    first.close()
    second = Ledger(path)
    spilled = spill(path, entry, big)
    second._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4000)

    with pytest.raises(LedgerError, match=r"of 5000 bytes .* refuses .*move the file away") as caught:
        read_spill(second)
    second.close()

    assert spilled.exists()
    assert str(spilled) in str(caught.value)


def test_a_spilled_answer_without_a_request_is_kept(tmp_path: Path) -> None:
    """A ledger that was moved away: the answer is paid for all the same."""
    old, new = Ledger(tmp_path / "old.sqlite"), Ledger(tmp_path / "ledger.sqlite")
    path = spill(new.path, claimed(old, request("a")), ANSWER)

    with pytest.raises(LedgerError, match=r"that .*ledger\.sqlite does not have: put back the ledger"):
        read_spill(new)
    old.close()
    new.close()

    assert path.exists()


def test_a_spilled_answer_goes_only_once_it_is_recorded(ledger: Ledger) -> None:
    """A crash between the record and the removal leaves the first; nothing overwrites what the ledger has."""
    paid(ledger, request("a"), 12)
    entry = LedgerEntry("a", 1, State.SETTLED, 100)
    same = spill(ledger.path, entry, ANSWER)

    assert 1 == read_spill(ledger)
    assert not same.exists()

    other = spill(ledger.path, entry, replace(ANSWER, raw=b"{}"))
    with pytest.raises(LedgerError, match="has as settled, with another answer"):
        read_spill(ledger)

    assert other.exists()
    with ledger.transaction():
        assert ledger.find("a") == LedgerEntry("a", 1, State.SETTLED, 100, 12, ANSWER)


def test_a_spilled_answer_is_read_in_for_its_own_attempt(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger.sqlite")
    entry = claimed(first, request("a"))
    first.close()
    second = Ledger(tmp_path / "ledger.sqlite")
    claimed(second, request("a"), resend=True)
    path = spill(second.path, entry, ANSWER)

    read_spill(second)
    with second.transaction():
        states = [found.state for attempt in (1, 2) if (found := second.find("a", attempt))]
    second.close()

    assert [State.ANSWERED, State.RESERVED] == states
    assert not path.exists()


def test_an_answer_with_its_price_is_settled_in_one_commit(ledger: Ledger) -> None:
    commits: list[str] = []
    entry = claimed(ledger, request("a"))
    ledger._db.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)

    async def keep() -> None:
        writer = LedgerWriter(ledger)
        await writer.keep(entry, ANSWER, Bill(12_000_000, 10, 20))
        await writer.close()

    asyncio.run(keep())

    assert ["COMMIT"] == commits
    with ledger.transaction():
        assert LedgerEntry("a", 1, State.SETTLED, 100, 12_000_000, ANSWER) == ledger.find("a")


def test_an_answer_without_a_price_stays_unsettled(ledger: Ledger) -> None:
    entry = claimed(ledger, request("a"))

    async def keep() -> None:
        writer = LedgerWriter(ledger)
        await writer.keep(entry, ANSWER, Bill(None, 10, 20))
        await writer.close()

    asyncio.run(keep())

    with ledger.transaction():
        assert LedgerEntry("a", 1, State.ANSWERED, 100, None, ANSWER) == ledger.find("a")
