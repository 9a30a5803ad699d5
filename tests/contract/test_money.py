"""What an answer costs is booked in full, and a cost that cannot be read stops the run.

The answers are bytes of a provider; the ledger is a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.generation.billing import Verdict, bill_of, verdict_of
from pipeline.generation.budget import Amount, Budget
from pipeline.generation.day_spend import CENT, DaySpend, booked_today
from pipeline.generation.engines.openrouter import HttpAnswer
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request, State, spent_today
from pipeline.generation.ledger_mark import LedgerMark
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.outcome import StopError
from pipeline.generation.paid_client import PaidClient, Reply
from pipeline.generation.preflight import require_same_ledger
from pipeline.records import Route
from pipeline.shards.manifest import Manifest, Session

pytestmark = pytest.mark.contract

WORST = Amount(10**11, 10, 1)
PAID = Request("a", "run-1", Route("openrouter", "m/k", "chutes"), "row-a", b"{}", WORST.pico)
UNREAD = ["1e9", '"0.01"', "-0.5", "true", "null", "NaN", "Infinity", "1e400", "[]", "{}", "1e99999999999999999999"]
UNREAD += ["9" * 5000]


def body(cost: str, more: str = "") -> bytes:
    return b'{"id":"gen-1-a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"cost":%s%s}}' % (
        cost.encode(),
        more.encode(),
    )


def stream(cost: str, more: str = "") -> bytes:
    return b'data: {"id":"gen-1-a","choices":[]}\n\ndata: ' + body(cost, more) + b"\n\ndata: [DONE]\n\n"


def details(upstream: str) -> str:
    return ',"cost_details":{"upstream_inference_cost":' + upstream + "}"


@pytest.mark.parametrize("form", [body, stream])
@pytest.mark.parametrize(
    "cost, more, expected",
    [
        ("0", ',"is_byok":true' + details("0.036"), 36 * 10**9),
        ("0.0018", ',"is_byok":true' + details("0.036"), 378 * 10**8),
        ("0", details("0.036"), 36 * 10**9),
        ("0.0018", details("0.036"), 378 * 10**8),
        ("0.036", details("0.036"), 36 * 10**9),
        ("0.036", ',"is_byok":false' + details("0.036"), 36 * 10**9),
        ("0.036", ',"is_byok":false' + details("null"), 36 * 10**9),
        ("0.036", details("null"), 36 * 10**9),
    ],
)
def test_a_key_of_ones_own_is_booked_with_its_bill(form, cost: str, more: str, expected: int) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    assert expected == bill_of(form(cost, more)).cost_pico


@pytest.mark.parametrize("upstream", ["null", '"0.036"', "-1", "true", "1e9"])
def test_a_bill_of_ones_own_key_that_is_unread_is_a_sign(upstream: str) -> None:
    bill = bill_of(body("0", ',"is_byok":true' + details(upstream)))

    assert (None, True) == (bill.cost_pico, bool(bill.unread))


def test_an_error_with_a_cost_that_is_unread_may_be_billed() -> None:
    assert verdict_of(LedgerAnswer(429, body('"0.01"'))) is Verdict.DOUBT


def test_the_last_cost_named_decides() -> None:
    assert (36 * 10**9, "") == (bill_of(stream("null") + stream("0.036")).cost_pico, bill_of(stream("0.036")).unread)
    assert bill_of(stream("0.036") + stream('"0.01"')).cost_pico is None


@pytest.mark.parametrize("form", [body, stream])
@pytest.mark.parametrize("cost", UNREAD)
def test_a_cost_that_is_unread_stops_and_counts_in_full(form, cost: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    provider, budget = Provider(form(cost)), Budget()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    try:
        with pytest.raises(StopError, match=r"the cost of answer .* cannot be read"):
            ask(ledger, provider, budget)
        assert WORST.pico == ledger.spent(api="openrouter")

        again = ask(ledger, provider, Budget())  # the same command again uses what was paid

        assert (1, State.ANSWERED, form(cost)) == (provider.asked, again.entry.state, again.entry.answer.raw)  # type: ignore[union-attr]
    finally:
        ledger.close()


class Provider:
    """Answers everything with one body, and counts."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.asked = raw, 0

    async def send(self, _: bytes) -> HttpAnswer:
        self.asked += 1
        return HttpAnswer(200, self.raw, "application/json", None, None)


def ask(ledger: Ledger, provider: Provider, budget: Budget) -> Reply:
    async def work() -> Reply:
        writer = LedgerWriter(ledger)
        try:
            return await PaidClient(writer, budget, provider).ask(PAID, WORST)
        finally:
            await writer.close()

    return asyncio.run(work())


def run_once(folder: Path, state: Path, row: str) -> None:
    """Ask one request in a session that ends without closing cleanly."""

    async def work(ledger: Ledger) -> None:
        mark = LedgerMark(folder, "run-1", ledger)
        writer = LedgerWriter(ledger, mark)
        try:
            await PaidClient(writer, Budget(), Provider(body("0.01"))).ask(replace(PAID, identity=row), WORST)
        finally:
            await writer.close()
            mark.close()

    ledger = Ledger(state)
    try:
        asyncio.run(work(ledger))
        # What a kill leaves: the files as they lie while the ledger is open.
        for path in state.parent.glob("ledger.sqlite*"):
            shutil.copy(path, folder / f"killed-{path.name}")
    finally:
        ledger.close()


@pytest.mark.parametrize("loss", ["all", "log", "older", "elsewhere"])
def test_a_ledger_that_lacks_what_a_run_wrote_is_refused(loss: str, tmp_path: Path) -> None:
    folder, state = tmp_path / "out", tmp_path / "ledger.sqlite"
    folder.mkdir()
    run_once(folder, state, "a")
    older = state.read_bytes()
    run_once(folder, state, "b")
    for path in tmp_path.glob("ledger.sqlite*"):
        path.unlink()
    if loss == "log":
        shutil.copy(folder / "killed-ledger.sqlite", state)
    elif loss == "older":
        state.write_bytes(older)
    place = tmp_path / "other.sqlite" if loss == "elsewhere" else state

    with pytest.raises(StopError, match="it is not the ledger that this run wrote"):
        run_once(folder, place, "c")


def test_a_ledger_as_a_kill_leaves_it_goes_on(tmp_path: Path) -> None:
    folder, state = tmp_path / "out", tmp_path / "ledger.sqlite"
    folder.mkdir()
    run_once(folder, state, "a")
    state.unlink()
    for name in ("ledger.sqlite", "ledger.sqlite-wal"):
        shutil.copy(folder / f"killed-{name}", tmp_path / name)

    run_once(folder, state, "b")

    assert (folder / "ledger.mark").read_bytes() == b"00000000000000000004\n"


def test_another_ledger_than_a_session_wrote_is_refused(tmp_path: Path) -> None:
    """Though nothing was asked yet, and whatever became of the mark."""
    with contextlib.closing(Ledger(tmp_path / "ledger.sqlite")) as first:
        begun = Manifest("run-1", {}, (Session("now", "", {}, ledger=first.id),))
        require_same_ledger(begun, first, tmp_path)
    another = contextlib.closing(Ledger(tmp_path / "other.sqlite"))
    with another as other, pytest.raises(StopError, match="would be paid for again"):
        require_same_ledger(begun, other, tmp_path)


@pytest.mark.parametrize("text", [b"7", b"0000000000000000000x\n", b"-0000000000000000001\n"])
def test_a_mark_that_is_no_count_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "ledger.mark").write_bytes(text)

    with pytest.raises(StopError, match="is no count"):
        run_once(tmp_path, tmp_path / "ledger.sqlite", "a")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The developer's folder of keys."""
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def pay(state: Path, cap: int, names: str, cost: str = "0.01") -> list[str]:
    """Ask a request a name in one session of a checkout; return the names that were asked."""

    async def work(ledger: Ledger) -> list[str]:
        budget, asked = Budget(day=DaySpend(cap)), list[str]()
        writer = LedgerWriter(ledger)
        try:
            for name in names:
                await PaidClient(writer, budget, Provider(body(cost))).ask(replace(PAID, identity=name), WORST)
                asked.append(name)
        except StopError as error:
            assert "UTC day in all checkouts" in str(error)  # noqa: PT017 - the rest is what is tested
        finally:
            await writer.close()
            budget.close()
        return asked

    with contextlib.closing(Ledger(state)) as ledger:
        return asyncio.run(work(ledger))


def test_the_days_dollar_is_one_for_all_checkouts(keys: Path, tmp_path: Path) -> None:
    """And for a ledger that was removed: 0.03 of 0.13, then a worst case of 0.10 fits once more."""
    cap = 13 * CENT
    first = pay(tmp_path / "one.sqlite", cap, "abc")
    known = spent_today(tmp_path / "two.sqlite")
    for path in tmp_path.glob("one.sqlite*"):
        path.unlink()

    second = pay(tmp_path / "one.sqlite", cap, "abc")

    assert (["a", "b", "c"], 3 * CENT, ["a"]) == (first, known, second)
    assert 4 * CENT == spent_today(tmp_path / "two.sqlite")
    assert 0o700 == keys.stat().st_mode & 0o777


def test_a_killed_session_keeps_what_it_held(keys: Path, tmp_path: Path) -> None:
    DaySpend(13 * CENT).hold(10 * CENT, 10 * CENT)  # never closed

    assert (10 * CENT, []) == (spent_today(tmp_path / "two.sqlite"), pay(tmp_path / "two.sqlite", 13 * CENT, "a"))
    assert (keys / "spend.sqlite").exists()


def test_two_sessions_at_once_never_hold_more_than_the_day(keys: Path) -> None:
    one, two = DaySpend(13 * CENT), DaySpend(13 * CENT)

    held = [one.hold(5 * CENT, 0), two.hold(8 * CENT, 0), one.hold(5 * CENT + 1, 0), two.hold(8 * CENT + 1, 0)]

    assert held[:2] == [None, None]
    assert ["$0.130000000001 of $0.1300", "$0.130000000001 of $0.1300"] == [str(text)[:26] for text in held[2:]]
    assert keys.is_dir()


def test_a_day_that_begins_counts_what_is_in_flight(keys: Path) -> None:
    """Spent before midnight is of the day before; what is reserved then counts on both."""
    evening, morning = datetime(2026, 11, 30, 23, tzinfo=UTC), datetime(2026, 12, 1, 1, tzinfo=UTC)
    now = [evening]
    session = DaySpend(13 * CENT, clock=lambda: now[0])
    session.hold(9 * CENT, 4 * CENT)
    now[0] = morning
    session.hold(11 * CENT, 6 * CENT)

    assert (9 * CENT, 6 * CENT) == (booked_today(lambda: evening), booked_today(lambda: morning))
    assert keys.is_dir()


def test_a_folder_of_keys_that_takes_nothing_stops_the_run(keys: Path) -> None:
    keys.write_text("a file")

    with pytest.raises(LedgerError, match="export DRAFTER_GATE_KEYS=DIR"):
        DaySpend(CENT)
