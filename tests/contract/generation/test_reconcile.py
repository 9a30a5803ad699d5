"""Reconciling: settled at what the provider names, freed only where that is nothing, and no row of what was lost."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.generation.billing import completion_of
from pipeline.generation.budget import Amount, Budget
from pipeline.generation.engines.openrouter import HttpAnswer, OpenRouter
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request, State
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.paid_client import PaidClient, Reply
from pipeline.generation.reconcile import Reconciled, reconcile
from pipeline.records import Json, Reason, RefusedError, Route

pytestmark = pytest.mark.contract

WORST = Amount(100, 10, 1)
PAID = Request("a", "run-1", Route("openrouter", "m/k", "chutes"), "row-a", b"{}", WORST.pico)
LOST = LedgerAnswer(502, b'{"error":{"code":502,"message":"lost"}}', {"complete": True}, "gen-1-a")
GOOD = b'{"id":"gen-2-a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"cost":0.000000000012}}'


class Provider:
    """Answers well, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    async def send(self, _: bytes) -> HttpAnswer:
        self.asked += 1
        return HttpAnswer(200, GOOD, "application/json", None, None)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    with opened.transaction():
        entry = opened.claim(PAID, lambda: None)
        opened.answer(entry, LOST)
        opened.lose(entry, "502: lost")
    yield opened
    opened.close()


class Told(OpenRouter):
    """Answers a GET with one record, without a wire; loopback does it in tests/e2e."""

    def __init__(self, record: dict[str, Json]) -> None:
        super().__init__()
        self.raw = json.dumps({"data": record}).encode()

    async def get(self, path: str, **params: str) -> HttpAnswer:
        if (path, params) != ("generation", {"id": "gen-1-a"}):
            raise AssertionError(path, params)
        return HttpAnswer(200, self.raw, "application/json", None, None)


def reconciled(ledger: Ledger, record: dict[str, Json]) -> dict[Reconciled, int]:
    async def work() -> dict[Reconciled, int]:
        async with Told(record) as client:
            return dict(await reconcile(client, ledger, "openrouter"))

    return asyncio.run(work())


def asked_again(ledger: Ledger, provider: Provider, *, resend: bool = False) -> Reply:
    async def work() -> Reply:
        writer = LedgerWriter(ledger)
        try:
            return await PaidClient(writer, Budget(), provider, resend_unknown=resend).ask(PAID, WORST)
        finally:
            await writer.close()

    return asyncio.run(work())


def standing(ledger: Ledger) -> tuple[State, int | None]:
    with ledger.transaction():
        entry = ledger.find("a", 1)
    assert entry is not None
    return entry.state, entry.cost_pico


@pytest.mark.parametrize("resend", [False, True])
def test_what_was_billed_is_refused_and_not_paid_again(resend: bool, ledger: Ledger) -> None:
    """It is refused as the error that it was."""
    found = reconciled(ledger, {"total_cost": 0.00000000005, "is_byok": False})
    reply = asked_again(ledger, provider := Provider(), resend=resend)

    assert {Reconciled.SETTLED: 1} == found
    assert (0, False, False, State.SETTLED, 50) == (
        *(provider.asked, reply.sent, reply.again, reply.entry.state, reply.entry.cost_pico),
    )
    assert reply.entry.answer == LOST
    with pytest.raises(RefusedError) as caught:
        completion_of(reply.entry.answer, stream=True)
    assert (Reason.UPSTREAM_ERROR, "502: lost") == (caught.value.refusal.reason, caught.value.refusal.detail)


@pytest.mark.parametrize(
    "counts, expected", [((3, 4), (3, 4)), ((0, 0), (0, 0)), ((-1, 4), (None, 4)), ((True, "4"), (None, None))]
)
def test_counts_are_kept_where_they_are_counts(
    counts: tuple[Json, Json], expected: tuple[int | None, int | None], ledger: Ledger
) -> None:
    named = {"native_tokens_prompt": counts[0], "native_tokens_completion": counts[1]}
    reconciled(ledger, {"total_cost": 0.00000000005, "is_byok": False, **named})

    with closing(sqlite3.connect(ledger.path)) as db:
        found = db.execute("SELECT prompt_tokens, completion_tokens FROM requests").fetchone()

    assert expected == found


def test_what_was_billed_nothing_is_asked_anew(ledger: Ledger) -> None:
    found = reconciled(ledger, {"total_cost": 0, "is_byok": False, "upstream_inference_cost": 0})
    reply = asked_again(ledger, provider := Provider())

    assert ({Reconciled.FREE: 1}, (State.FAILED_FREE, 0)) == (found, standing(ledger))
    assert (1, State.SETTLED, 2) == (provider.asked, reply.entry.state, reply.entry.attempt)


@pytest.mark.parametrize("byok", [{"is_byok": True}, {}, {"is_byok": None}])
def test_what_was_billed_upstream_to_the_own_key_is_not_free(byok: dict[str, Json], ledger: Ledger) -> None:
    record: dict[str, Json] = {"total_cost": 0, "upstream_inference_cost": 0.00000000007}

    assert {Reconciled.SETTLED: 1} == reconciled(ledger, record | byok)
    assert (State.SETTLED, 70) == standing(ledger)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"total_cost": None},
        {"total_cost": True},
        {"total_cost": -1},
        {"total_cost": "much"},
        {"total_cost": 0, "is_byok": True},
        {"total_cost": 0, "is_byok": True, "upstream_inference_cost": None},
    ],
)
def test_a_cost_that_is_not_named_leaves_the_request_as_it_is(record: dict[str, Json], ledger: Ledger) -> None:
    assert {Reconciled.NOT_YET: 1} == reconciled(ledger, record)
    assert (State.UNKNOWN, None) == standing(ledger)
