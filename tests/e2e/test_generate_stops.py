"""Whatever stops a run, nothing is lost and nothing is asked twice. Against a real loopback emulator; no torch."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from harness.emulator.answers import Ask, Sampled
from harness.emulator.errors import ApiError
from harness.emulator.service import Faults
from harness.fixtures.runs import ROWS, SlowAnswerer, World, emulating, pool, sample_ids, silent
from pipeline.base.money import pico
from pipeline.gate.attestation import Scope
from pipeline.gate.digests import tree_digests
from pipeline.gate.gate import Job, Kind, Permit
from pipeline.generation import run
from pipeline.generation.breaker import Sign
from pipeline.generation.engines.openrouter import OpenRouter
from pipeline.generation.generate import run_generation
from pipeline.generation.ledger import Ledger
from pipeline.generation.outcome import StopError
from pipeline.generation.plan import BreakerPolicy, RetryPolicy
from pipeline.generation.reconcile import Reconciled, reconcile
from pipeline.records import Sampling


def test_ctrl_c_lets_answers_in_flight_come_in(world: World) -> None:
    """A second run asks only the rest."""
    slow = SlowAnswerer(pool(world.fmt), seconds=0.1, at={12: signal.SIGINT})
    with emulating(world, slow) as live:
        first = live.run(live.plan(concurrency=6))
        asked = slow.asked
        second = live.run(live.plan(concurrency=6))

    assert ("interrupted", 130, asked, 0) == (first.outcome, first.code, first.rows["accepted"], first.rows["unknown"])
    assert 12 <= asked < 20
    assert ("complete", 0, ROWS - asked) == (second.outcome, second.code, second.rows["asked"])
    assert dict.fromkeys(sample_ids(), 1) == world.asked()
    assert [] == world.false_rows()


def test_a_second_ctrl_c_breaks_off_and_says_what_is_unknown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    slow = SlowAnswerer(pool(world.fmt), seconds=1.0, at={4: signal.SIGINT}, again_after=0.3)
    with emulating(world, slow) as live:
        first = live.run(live.plan(concurrency=4))
        slow.at.clear()
        slow.seconds = 0.0
        second = live.run(live.plan(concurrency=4))
        third = live.run(live.plan(concurrency=4, resend_unknown=True))

    assert (130, 4) == (first.code, first.cost["unsettled_requests"])
    assert "only --resend-unknown asks it again" in str(first.message)
    said = "finishing 4 in flight, for 120 s; press again to break off\nbreaking off what is in flight\n"
    assert said in capsys.readouterr().err
    assert (1, "incomplete", 4, ROWS - 4) == (second.code, second.outcome, second.rows["unknown"], second.rows["asked"])
    assert {f"row-{number}" for number in range(4)} == set(second.unknown_rows)
    assert (0, "complete", 4) == (third.code, third.outcome, third.rows["asked"])


def test_an_answer_without_end_holds_no_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One SIGTERM is enough, and what was broken off is unknown."""
    monkeypatch.setattr(run, "LONGEST_STOP", 0.3)
    slow = SlowAnswerer(pool(world.fmt), seconds=600.0, at={4: signal.SIGTERM})
    begun = time.monotonic()
    with emulating(world, slow) as live:
        summary = live.run(live.plan(concurrency=4))

    assert (130, 4) == (summary.code, summary.cost["unsettled_requests"])
    assert time.monotonic() - begun < 60


def test_a_killed_run_pays_nothing_twice_and_loses_no_answer(world: World) -> None:
    """No answer on disk, that is."""
    slow = SlowAnswerer(pool(world.fmt), seconds=0.1)
    with emulating(world, slow) as live:
        process = live.start()
        deadline = time.monotonic() + 60
        while slow.asked < 13 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        slow.seconds = 0.0
        second = live.run()
        third = live.run(live.plan(resend_unknown=True))

    unknown = second.rows["unknown"]
    assert 1 <= unknown <= 4
    assert second.rows["from_ledger"] + second.rows["asked"] + second.rows["done_before"] == ROWS - unknown
    assert second.rows["from_ledger"] >= 8
    assert (0, ROWS, unknown) == (third.code, third.rows["accepted"], third.rows["asked"])
    twice = [count for count in world.asked().values() if count > 1]
    assert len(twice) <= unknown
    assert [] == world.false_rows()


@pytest.mark.parametrize("lost", ["ledger.sqlite*", "ledger.sqlite-*"], ids=["all", "log"])
def test_a_killed_run_whose_ledger_is_lost_asks_nothing(lost: str, world: World) -> None:
    slow = SlowAnswerer(pool(world.fmt), seconds=0.1)
    with emulating(world, slow) as live:
        process = live.start()
        deadline = time.monotonic() + 60
        while slow.asked < 13 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        gone = [path for path in world.ledger.parent.glob(lost) if path.suffix != ".lock"]
        for path in gone:
            path.unlink()
        asked = slow.asked
        with pytest.raises(
            StopError, match=r"it is not the ledger that this run wrote|would be paid for again"
        ) as caught:
            live.run()

    assert gone
    assert (2, asked) == (caught.value.code, slow.asked)


def test_a_run_killed_over_its_first_manifest_begins_anew(world: World) -> None:
    world.out.mkdir()
    for name in (".manifest.json.tmp", ".lock"):
        (world.out / name).write_text('{"manif')
    with emulating(world, pool(world.fmt)) as live:
        summary = live.run()

    assert ("complete", ROWS) == (summary.outcome, summary.rows["accepted"])
    assert not (world.out / ".manifest.json.tmp").exists()


@pytest.mark.parametrize("status", [429, 401])
def test_an_answer_left_unjudged_is_judged_by_the_next_run(status: int, world: World) -> None:
    """Turned away, free of charge: it is asked again, and counts for nothing."""
    told = Faults(before=lambda _: ApiError(status, "later"))
    with emulating(world, pool(world.fmt), told) as live:
        first = live.run(live.plan(limit=1, patience=RetryPolicy(attempts=1)))
    with sqlite3.connect(world.ledger) as db:
        assert 1 == db.execute("UPDATE requests SET state = 'answered', cost_pico = NULL").rowcount
    with emulating(world, pool(world.fmt)) as live:
        second = live.run()

    assert 0 == first.rows["accepted"]
    assert (0, ROWS, 0) == (second.code, second.rows["accepted"], second.cost["unsettled_requests"])
    assert [] == world.quarantine()


def test_a_full_disk_stops_the_run_and_no_paid_answer_is_lost(world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        process = live.start(file_limit=150_000)
        out, err = process.communicate(timeout=120)
        asked = sum(world.asked().values())
        second = live.run()

    assert "Traceback" not in err
    assert out.startswith("1 ")
    assert "disk is full or refuses writes" in out
    assert 0 < asked < ROWS
    assert (0, ROWS, 0) == (second.code, second.rows["accepted"], second.rows["unknown"])
    assert dict.fromkeys(sample_ids(), 1) == world.asked()


def test_a_full_disk_under_the_shards_alone_asks_nothing_again(world: World) -> None:
    class Filled(SlowAnswerer):
        async def answer(self, ask: Ask) -> Sampled:
            (world.folder / "out" / ".shard-00000.parquet.tmp").mkdir(exist_ok=True)
            return await super().answer(ask)

    with emulating(world, Filled(pool(world.fmt))) as live:
        first = live.run()
        (world.out / ".shard-00000.parquet.tmp").rmdir()
        second = live.run()

    assert 1 == first.code
    assert "run the same command again" in str(first.message)
    assert (0, 0, ROWS, ROWS) == (
        *(second.code, second.rows["asked"], second.rows["from_ledger"], second.rows["accepted"]),
    )


def test_a_budget_holds_whatever_is_in_flight(world: World) -> None:
    """Its end is exit 4."""
    slow = SlowAnswerer(pool(world.fmt), seconds=0.01)
    with emulating(world, slow) as live:
        plan = live.plan(sampling=Sampling(seed=1))
        full = live.run(replace(plan, out=world.folder / "all"))
        cost = world.billed()
        first = live.run(replace(plan, budget_pico=pico(cost / 2)))
        spent = world.billed() - cost
        second = live.run(replace(plan, budget_pico=pico(10)))

    assert 0 == full.code
    assert ("budget spent", 4) == (first.outcome, first.code)
    assert "raise the cap" in str(first.message)
    assert spent <= cost / 2
    assert 0 < first.rows["accepted"] < ROWS
    assert ("complete", ROWS) == (second.outcome, second.rows["accepted"])
    assert pico(world.billed()) == pico(cost * 2)  # each of the two folders was paid for once


def test_money_that_comes_back_is_used_before_the_run_stops(world: World) -> None:
    """Forty rows fit the budget by what they cost, though not four by their worst cases at once."""
    with emulating(world, pool(world.fmt)) as live:
        live.run(replace(live.plan(), out=world.folder / "all"))
        one = world.billed() / ROWS
        summary = live.run(live.plan(budget_pico=pico(one * ROWS * 3), sampling=Sampling(max_tokens=512)))

    assert ("complete", ROWS) == (summary.outcome, summary.rows["accepted"])


def test_a_tree_that_changed_since_the_gate_looked_asks_nothing(world: World) -> None:
    slow = SlowAnswerer(pool(world.fmt))
    with emulating(world, slow) as live:
        digests = tree_digests(live.root)
        (live.root / "pipeline" / "late.py").write_text("")
        permit = Permit(
            Job(Kind.GENERATE), Scope.DEV, Decimal(1), datetime.now(UTC) + timedelta(hours=1), "ab", digests
        )
        work = run_generation(permit, live.plan(), progress=silent, root=live.root, ledger=live.ledger)
        with pytest.raises(StopError, match=r"changed since the gate looked.*: pipeline/") as caught:
            asyncio.run(work)

    assert (3, 0) == (caught.value.code, slow.asked)


def test_a_permit_that_expires_stops_the_run(world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        summary = live.run(expires=timedelta(seconds=-1))

    assert (1, 0) == (summary.code, summary.rows["asked"])
    assert "expired" in str(summary.message)


def test_the_bill_of_a_lost_request_is_fetched_and_settled(world: World) -> None:
    """Streams cut before their usage count at their worst until `/generation` says what they cost."""

    async def cut(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in body:
            yield part[: len(part) // 2] if b"data:" in part else part

    with emulating(world, pool(world.fmt), Faults(body=cut)) as live:
        first = live.run(live.plan(watch=BreakerPolicy(accepted=frozenset(Sign))))
        time.sleep(1.1)  # a generation is known a second after its answer
        found = reconciled(live)
        again = reconciled(live)
    ledger = Ledger(world.ledger)
    with ledger.transaction():
        spent = ledger.spent(api="emulator")
    ledger.close()

    assert ROWS == first.cost["unsettled_requests"]
    assert ({Reconciled.SETTLED: ROWS}, {}) == (found, again)
    assert pico(world.billed()) == spent


def reconciled(world: World) -> dict[Reconciled, int]:
    async def work() -> dict[Reconciled, int]:
        async with OpenRouter(world.url) as client:
            with contextlib.closing(Ledger(world.ledger)) as ledger:
                return dict(await reconcile(client, ledger, "emulator"))

    return asyncio.run(work())
