"""The ledger: reserved before it is sent, written before it is used, never paid twice, never silently resent."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.base.json_lines import canonical
from pipeline.generation.budget import Amount
from pipeline.generation.ledger import (
    Ledger,
    LedgerAnswer,
    LedgerEntry,
    Request,
    Spend,
    State,
    identity,
    listing,
    spent_by,
    spent_today,
)
from pipeline.generation.ledger_schema import LedgerError
from pipeline.records import Route

pytestmark = pytest.mark.contract

PAID = Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow", stream=True)
EMULATED = Route("emulator", "drafter-gate/tiny-kimi", "siliconflow")
ANSWER = LedgerAnswer(200, b'\n\n {"id": "gen-1-a", "usage": {"cost": 0.000012}}', {"complete": True}, "gen-1-a")
NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def request(name: str, *, route: Route = PAID, worst: int = 100, run: str = "run-1") -> Request:
    return Request(name, run, route, f"row-{name}", b'{"model":"m"}', worst, "B4")


def nothing() -> None:
    """Reserve from no budget."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "state" / "ledger.sqlite", clock=lambda: NOON)
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


def test_a_settled_request_is_found_and_never_claimed_again(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)

    again = claimed(ledger, request("a"))

    assert LedgerEntry("a", 1, State.SETTLED, 100, 12, ANSWER) == again


def test_an_answer_that_was_not_settled_is_given_back_too(ledger: Ledger) -> None:
    entry = claimed(ledger, request("a"))
    with ledger.transaction():
        ledger.answer(entry, ANSWER)

    again = claimed(ledger, request("a"))

    assert LedgerEntry("a", 1, State.ANSWERED, 100, None, ANSWER) == again


def test_what_failed_free_is_claimed_anew_as_the_next_attempt(ledger: Ledger) -> None:
    entry = claimed(ledger, request("a"))
    with ledger.transaction():
        ledger.fail_free(entry, "429: later")

    again = claimed(ledger, request("a"))

    assert (2, State.RESERVED) == (again.attempt, again.state)
    assert ledger.spent(api="openrouter") == 100


def test_a_crash_leaves_unknown_and_it_is_resent_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path)
    claimed(first, request("a"))
    first.close()

    second = Ledger(path)
    shown = claimed(second, request("a"))
    resent = claimed(second, request("a"), resend=True)
    worst = second.spent(api="openrouter")
    second.close()

    assert (1, State.UNKNOWN, None) == (shown.attempt, shown.state, shown.answer)
    assert "ended before an answer was written" in (shown.note or "")
    assert (2, State.RESERVED) == (resent.attempt, resent.state)
    assert worst == 200  # both may have to be paid


def test_the_budget_is_asked_only_for_a_new_reservation(ledger: Ledger) -> None:
    """Its refusal leaves no reservation."""
    paid(ledger, request("a"), 12)

    def refuse() -> None:
        raise RuntimeError("too dear")

    with ledger.transaction():
        found = ledger.claim(request("a"), refuse)
    with pytest.raises(RuntimeError, match="too dear"), ledger.transaction():
        ledger.claim(request("b"), refuse)

    with ledger.transaction():
        assert (State.SETTLED, None) == (found.state, ledger.find("b"))


def test_no_state_is_left_twice(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)
    entry = LedgerEntry("a", 1, State.RESERVED, 100)

    acts: list[Callable[[], None]] = [
        lambda: ledger.settle(entry, 12),
        lambda: ledger.answer(entry, ANSWER),
        lambda: ledger.fail_free(entry, "no"),
        lambda: ledger.lose(entry, "no"),
    ]
    for act in acts:
        with pytest.raises(LedgerError, match="is not"), ledger.transaction():
            act()

    assert ledger.spent(api="openrouter") == 12


def test_emulated_money_is_in_no_sum_of_real_money(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)
    paid(ledger, request("b", route=EMULATED, run="run-2"), 500)

    sums = [ledger.spent(api="openrouter"), ledger.spent(api="emulator"), ledger.spent(run="run-2")]

    assert [12, 500, 500] == sums


def test_todays_spend_is_of_the_utc_day_at_the_worst_case(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    days = iter([datetime(2026, 11, 28, 23, 59, 59, tzinfo=UTC)] * 3)
    ledger = Ledger(path, clock=lambda: next(days, NOON))
    paid(ledger, request("yesterday"), 7)
    paid(ledger, request("today"), 11)
    claimed(ledger, request("open", worst=1000))

    today = spent_today(path, clock=lambda: NOON)
    ledger.close()

    assert today == 1011


def test_a_missing_ledger_has_spent_nothing_and_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.sqlite"

    assert (0, []) == (spent_today(path), listing(path))
    assert not path.exists()


def test_the_listing_has_a_line_a_day_route_dataset_and_state(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)
    paid(ledger, request("b"), 13)
    claimed(ledger, request("c"))

    expected = [
        Spend("2026-11-29", "openrouter", "openrouter/siliconflow", "B4", State.RESERVED, 1, 100),
        Spend("2026-11-29", "openrouter", "openrouter/siliconflow", "B4", State.SETTLED, 2, 25),
    ]
    assert expected == listing(ledger.path)


def test_an_identity_is_of_body_and_route_not_of_key_order() -> None:
    body = {"model": "m", "user": "1"}
    base = identity(PAID, body, run="r")

    assert base == identity(PAID, {"user": "1", "model": "m"}, run="r")
    assert base == identity(PAID, body, run="another: real money is paid once")
    others = {
        identity(PAID, {**body, "user": "2"}, run="r"),
        identity(replace(PAID, provider="chutes"), body, run="r"),
        identity(EMULATED, body, run="r"),
        identity(EMULATED, body, run="s"),
    }
    assert len({base, *others}) == 5


def test_a_lone_surrogate_in_a_body_has_an_identity() -> None:
    assert canonical({"content": "\ud83d"}) == b'{"content":"\\ud83d"}'


def test_a_second_run_is_told_who_holds_the_ledger(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=rf"in use by another run \(process {os.getpid()}\)"):
        Ledger(ledger.path)


def test_readers_need_no_lock(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)

    assert spent_today(ledger.path, clock=lambda: NOON) == 12


@pytest.mark.parametrize("content, word", [(b"not a database" * 100, "no readable ledger"), (b"", "")])
def test_a_file_that_is_no_ledger_is_left_alone(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    if not content:
        Ledger(path).close()  # an empty file is a new ledger
        return

    with pytest.raises(LedgerError, match=word):
        Ledger(path)

    assert content == path.read_bytes()


def test_a_ledger_of_a_later_program_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()

    with pytest.raises(LedgerError, match="has schema 99, this program knows 3"):
        Ledger(path)


def test_a_commit_is_synced_in_full(ledger: Ledger) -> None:
    modes = [ledger._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert ["wal", 2] == modes


def killed_while_in_flight(path: str) -> None:
    ledger = Ledger(Path(path))
    paid(ledger, request("a"), 12)
    claimed(ledger, request("b"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_loses_no_answer(tmp_path: Path) -> None:
    """The ledger shows what was in flight."""
    path = tmp_path / "ledger.sqlite"
    process = multiprocessing.get_context("spawn").Process(target=killed_while_in_flight, args=(str(path),))
    process.start()
    process.join()

    ledger = Ledger(path)
    with ledger.transaction():
        states = [entry.state for name in "ab" if (entry := ledger.find(name))]
    ledger.close()

    assert [State.SETTLED, State.UNKNOWN] == states


def test_a_full_disk_is_explained_and_leaves_the_ledger_whole(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)
    entry = claimed(ledger, request("b"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(LedgerError, match="disk is full or refuses writes"), ledger.transaction():
            ledger.answer(entry, replace(ANSWER, raw=b"x" * 400_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with ledger.transaction():
        ledger.answer(entry, ANSWER)
        assert (ANSWER, 112) == (ledger.find("b").answer, ledger.spent(api="openrouter"))  # type: ignore[union-attr]


def test_an_answer_in_doubt_is_unknown_with_its_bytes(ledger: Ledger) -> None:
    """It counts at its worst case."""
    entry = claimed(ledger, request("a"))
    with ledger.transaction():
        ledger.answer(entry, ANSWER)
    with ledger.transaction():
        ledger.lose(entry, "502: lost")

    assert LedgerEntry("a", 1, State.UNKNOWN, 100, None, ANSWER, "502: lost") == claimed(ledger, request("a"))
    assert (2, State.RESERVED) == (claimed(ledger, request("a"), resend=True).attempt, State.RESERVED)
    assert 200 == ledger.spent(api="openrouter")


def test_what_one_run_spent_is_read_beside_it(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)
    paid(ledger, request("b", run="run-2"), 30)
    claimed(ledger, request("c", worst=1000))

    assert [1012, 30, 0] == [spent_by(ledger.path, run) for run in ("run-1", "run-2", "run-3")]
    with ledger.transaction():
        assert 1042 == ledger.spent_today("openrouter")


def test_nobody_is_told_to_take_another_ledger(ledger: Ledger) -> None:
    """Under another state folder the day's spend would be nothing."""
    with pytest.raises(LedgerError) as caught:
        Ledger(ledger.path)

    assert "DRAFTER_GATE_STATE" not in str(caught.value)


def test_use_counts_unsettled_requests_at_their_worst(ledger: Ledger) -> None:
    paid(ledger, request("a"), 12)
    claimed(ledger, replace(request("b"), worst_tokens=500))
    claimed(ledger, replace(request("c", run="run-2"), worst_tokens=7))
    free = claimed(ledger, replace(request("d"), worst_tokens=900))
    with ledger.transaction():
        ledger.fail_free(free, "429")
        found = ledger.used(run="run-1"), ledger.used(api="openrouter", today=True), ledger.used(api="emulator")

    assert (Amount(112, 530, 2), Amount(212, 537, 3), Amount()) == found


def test_a_ledger_of_the_first_schema_keeps_all_it_had(tmp_path: Path) -> None:
    """It is brought up to the present schema."""
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path, clock=lambda: NOON)
    paid(first, request("a"), 12)
    first.close()
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE requests DROP COLUMN worst_tokens")
        db.execute("DROP TABLE ledger")
        db.execute("PRAGMA user_version = 1")
    before = listing(path)
    second = Ledger(path, clock=lambda: NOON)
    with second.transaction():
        found = second.find("a")
        used = second.used(run="run-1")
    second.close()

    assert LedgerEntry("a", 1, State.SETTLED, 100, 12, ANSWER) == found
    assert 32 == len(second.id)
    assert Amount(12, 30, 1) == used
    assert listing(path) == before


def test_what_could_cost_nothing_is_free_after_a_kill(ledger: Ledger) -> None:
    """Only that, and only of this run."""
    free, paid = request("free", route=Route("sglang", "m"), worst=0), request("paid")
    with ledger.transaction():
        for each in (free, paid):
            ledger.lose(ledger.claim(each, nothing), "killed")

    with ledger.transaction():
        freed = ledger.free("run-1")
        states = [found.state for name in ("free", "paid") if (found := ledger.find(name)) is not None]

    assert (1, [State.FAILED_FREE, State.UNKNOWN]) == (freed, states)


def test_engine_seconds_are_summed_over_a_runs_answers(ledger: Ledger) -> None:
    with ledger.transaction():
        for name, seconds, run in (("a", 1.5, "run-1"), ("b", 0.25, "run-1"), ("c", 9.0, "run-2")):
            entry = ledger.claim(request(name, worst=0, run=run), nothing)
            ledger.answer(entry, replace(ANSWER, headers={"engine_seconds": seconds}))
        ledger.answer(ledger.claim(request("d"), nothing), ANSWER)

        assert 1.75 == ledger.engine_seconds("run-1")
