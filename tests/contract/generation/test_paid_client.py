"""One paid request, and the wait that a provider names."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.generation.billing import Bill, Verdict
from pipeline.generation.budget import Amount, Budget, Cap
from pipeline.generation.engines.openrouter import HttpAnswer, NoAnswerError
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request, State
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.outcome import StopError
from pipeline.generation.paid_client import PaidClient, Reply, retry_after_seconds
from pipeline.records import Route

pytestmark = pytest.mark.contract

WORST = Amount(100, 10, 1)
PAID = Request("a", "run-1", Route("openrouter", "m/k", "chutes"), "row-a", b"{}", WORST.pico)
GOOD = b'{"id":"gen-1-a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"cost":0.000000000012}}'
BAD = b'{"error":{"message":"no \\ud83d","code":1}}'


class Provider:
    """Answers everything with one status and body, and counts."""

    def __init__(self, status: int = 200, raw: bytes = GOOD) -> None:
        self.status, self.raw, self.asked = status, raw, 0

    async def send(self, _: bytes) -> HttpAnswer:
        self.asked += 1
        return HttpAnswer(self.status, self.raw, "application/json", None, None)


class Mute(Provider):
    """Gives no answer."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__()
        self.sent = sent

    async def send(self, _: bytes) -> HttpAnswer:
        raise NoAnswerError("the connection broke", sent=self.sent)


class Silent(Provider):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    async def send(self, _: bytes) -> HttpAnswer:
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def ask(ledger: Ledger, provider: Provider, *, resend: bool = False, budget: Budget | None = None) -> Reply:
    async def work() -> Reply:
        writer = LedgerWriter(ledger)
        try:
            return await PaidClient(writer, budget or Budget(), provider, resend_unknown=resend).ask(PAID, WORST)
        finally:
            await writer.close()

    return asyncio.run(work())


def answered(ledger: Ledger, status: int, raw: bytes = BAD) -> None:
    """What a kill leaves between writing an answer down and judging it."""
    with ledger.transaction():
        entry = ledger.claim(PAID, lambda: None)
    with ledger.transaction():
        ledger.answer(entry, LedgerAnswer(status, raw))


def standing(ledger: Ledger, attempt: int = 1) -> tuple[State, int]:
    with ledger.transaction():
        entry = ledger.find("a", attempt)
    assert entry is not None
    return entry.state, ledger.spent(api="openrouter")


@pytest.mark.parametrize("status", [429, 503, 401, 404])
def test_an_answer_that_was_free_and_passing_is_asked_again(status: int, ledger: Ledger) -> None:
    answered(ledger, status)
    provider = Provider()

    reply = ask(ledger, provider)

    assert (1, True, State.SETTLED, 2) == (provider.asked, reply.sent, reply.entry.state, reply.entry.attempt)
    assert (State.FAILED_FREE, 12) == standing(ledger)


def test_a_rejected_prompt_is_refused_free_of_charge(ledger: Ledger) -> None:
    answered(ledger, 400)
    provider = Provider()

    reply = ask(ledger, provider)

    assert (0, False, False, 400) == (
        *(provider.asked, reply.sent, reply.again, reply.entry.answer and reply.entry.answer.status),
    )
    assert (State.FAILED_FREE, 0) == standing(ledger)


@pytest.mark.parametrize("status", [408, 500, 502, 504, 524])
@pytest.mark.parametrize("found", [True, False], ids=["found", "fresh"])
def test_an_error_that_may_be_billed_is_unknown_until_resent(status: int, found: bool, ledger: Ledger) -> None:
    """It counts at its worst case until then."""
    budget = Budget(Cap("run", pico=1000))
    if found:
        answered(ledger, status)
    first = ask(ledger, Provider(status, BAD), budget=budget)
    still = ask(ledger, provider := Provider())
    spent = standing(ledger)
    resent = ask(ledger, provider, resend=True)

    assert (State.UNKNOWN, not found) == (first.entry.state, first.sent)
    assert (State.UNKNOWN, False, status) == (
        *(still.entry.state, still.sent, still.entry.answer and still.entry.answer.status),
    )
    assert (State.UNKNOWN, WORST.pico) == spent
    assert Amount() == budget.reserved
    assert (State.SETTLED, 2, 1) == (resent.entry.state, resent.entry.attempt, provider.asked)
    assert (State.UNKNOWN, WORST.pico + 12) == standing(ledger)


@pytest.mark.parametrize(
    "provider, state, used",
    [
        (Provider(), State.SETTLED, Amount(12, 7, 1)),
        (Provider(raw=b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'), State.ANSWERED, WORST),
        (Provider(502, BAD), State.UNKNOWN, WORST),
        (Provider(429, BAD), State.FAILED_FREE, Amount()),
        (Mute(sent=True), State.UNKNOWN, WORST),
        (Mute(sent=False), State.FAILED_FREE, Amount()),
    ],
    ids=["priced", "without a price", "in doubt", "free", "lost", "never sent"],
)
def test_a_request_holds_what_it_may_have_cost(provider: Provider, state: State, used: Amount, ledger: Ledger) -> None:
    """What is not known counts at its worst case, in the budget as in the ledger."""
    budget = Budget(Cap("run", pico=1000))

    ask(ledger, provider, budget=budget)

    assert (used, Amount()) == (budget.used, budget.reserved)
    assert (state, used.pico) == standing(ledger)


def test_a_request_that_was_broken_off_may_have_been_billed(ledger: Ledger) -> None:
    budget = Budget(Cap("run", pico=1000))

    async def work() -> None:
        writer = LedgerWriter(ledger)
        try:
            asked = asyncio.ensure_future(PaidClient(writer, budget, (silent := Silent())).ask(PAID, WORST))
            await silent.began.wait()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        finally:
            await writer.close()

    asyncio.run(work())

    assert (WORST, Amount()) == (budget.used, budget.reserved)
    assert (State.UNKNOWN, WORST.pico) == standing(ledger)


def test_a_disk_without_room_for_answers_stops_before_sending(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 200, 200, 10, 10, 10, 0, 255))
    monkeypatch.setattr("pipeline.generation.paid_client.os.statvfs", lambda _: full)

    with pytest.raises(StopError, match="the disk is nearly full, 800 KiB are free"):
        ask(ledger, provider := Provider())
    assert 0 == provider.asked


def test_a_found_error_in_doubt_is_resent_where_asked(ledger: Ledger) -> None:
    answered(ledger, 502)

    assert State.SETTLED == ask(ledger, Provider(), resend=True).entry.state
    assert (State.UNKNOWN, WORST.pico + 12) == standing(ledger)


def test_an_answer_that_was_not_settled_is_settled_and_not_asked(ledger: Ledger) -> None:
    answered(ledger, 200, GOOD)
    provider = Provider()

    assert (State.SETTLED, False, 0) == ((reply := ask(ledger, provider)).entry.state, reply.sent, provider.asked)
    assert (State.SETTLED, 12) == standing(ledger)


def test_an_error_message_without_utf8_is_written_down(ledger: Ledger) -> None:
    assert ask(ledger, Provider(429, BAD)).again
    assert (State.FAILED_FREE, 0) == standing(ledger)


def test_a_provider_that_loses_every_request_stops_the_run(ledger: Ledger) -> None:
    async def work() -> int:
        writer = LedgerWriter(ledger)
        desk, count = PaidClient(writer, Budget(), Provider(502, BAD)), 0
        try:
            while True:
                name = f"r{count}"
                await desk.ask(Request(name, "run-1", PAID.route, name, b"{}", WORST.pico), WORST)
                count += 1
        except StopError as error:
            assert "20 requests in a row" in str(error)  # noqa: PT017 - what is asserted is how the loop ends
            return count
        finally:
            await writer.close()

    assert 19 == asyncio.run(work())


def test_an_answer_that_cannot_be_judged_is_written_down(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbling(_: LedgerAnswer) -> tuple[Verdict, Bill]:
        raise ZeroDivisionError("halves of nothing")

    monkeypatch.setattr("pipeline.generation.paid_client.judged", stumbling)
    with pytest.raises(ZeroDivisionError):
        ask(ledger, Provider())
    monkeypatch.undo()

    assert (State.ANSWERED, WORST.pico) == standing(ledger)
    assert (State.SETTLED, False) == ((reply := ask(ledger, Provider())).entry.state, reply.sent)


NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
RESET = str(int(NOW.timestamp() * 1000) + 7500)
BODY = json.dumps({"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": RESET}}}}).encode()


@pytest.mark.parametrize(
    "retry_after, reset, raw, expected",
    [
        ("3", None, b"", 3.0),
        ("0.5", None, b"", 0.5),
        ("Mon, 30 Nov 2026 12:00:09 GMT", None, b"", 9.0),
        (None, RESET, b"", 7.5),
        (None, None, BODY, 7.5),
        ("20", RESET, BODY, 20.0),
        ("1", RESET, b"", 7.5),
        ("-4", None, b"", 0.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", None, b"", 0.0),
    ],
)
def test_the_longest_wait_that_is_named_counts(
    retry_after: str | None, reset: str | None, raw: bytes, expected: float
) -> None:
    assert expected == retry_after_seconds(HttpAnswer(429, raw, "", None, retry_after, reset), NOW)


@pytest.mark.parametrize("junk", ["", "soon", "nan", "inf", "1e999", "Mon, 99 Nov"])
@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"error":"no"}', b'{"error":{"metadata":null}}', b"[" * 100_000, b"\xff"]
)
def test_what_names_no_wait_names_none(junk: str, raw: bytes) -> None:
    assert retry_after_seconds(HttpAnswer(429, raw, "", None, junk, junk), NOW) is None


def test_a_date_that_no_clock_has_names_no_wait() -> None:
    far = "Mon, 01 Jan 2024 00:00:00 +99999999999999"

    assert retry_after_seconds(HttpAnswer(429, b"", "application/json", None, far), NOW) is None
