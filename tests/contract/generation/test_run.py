"""What a run holds itself to, whatever the gate was told before it had the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from harness.fixtures.runs import byte_format
from pipeline.base.money import pico
from pipeline.cli.generate import job_of
from pipeline.gate.attestation import Scope
from pipeline.gate.gate import Job, Kind, Permit
from pipeline.generation.budget import Amount, Budget, BudgetError
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request
from pipeline.generation.plan import Caps, Plan
from pipeline.generation.run import budget_of
from pipeline.records import Route, Sampling, ToolMode
from pipeline.shards import manifest
from pipeline.shards.manifest import Manifest

pytestmark = pytest.mark.contract

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
PAID = Route("openrouter", "m/k", "chutes")


class Clock:
    now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tmp_path / "keys"))
    opened = Ledger(tmp_path / "ledger.sqlite", clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "tokenizer").mkdir()
    fmt = byte_format(tmp_path / "tokenizer")
    where = (tmp_path / "prompts.jsonl", tmp_path / "out")
    return Plan(*where, PAID, Sampling(), ToolMode.RAW, fmt, budget_pico=pico("0.8"))


def permit(scope: Scope = Scope.DEV, kind: Kind = Kind.GENERATE) -> Permit:
    return Permit(Job(kind, PAID), scope, Decimal("0.8"), NOON + timedelta(hours=1), "ab" * 32, {})


def spend(ledger: Ledger, usd: str, run: str) -> None:
    request = Request(f"{run}-{usd}", run, PAID, "row", b"{}", pico(1))
    with ledger.transaction():
        entry = ledger.claim(request, lambda: None)
    with ledger.transaction():
        ledger.answer(entry, LedgerAnswer(200, b"{}"))
    with ledger.transaction():
        ledger.settle(entry, pico(usd))


def room(budget: Budget) -> Decimal:
    """The most that one more request may cost, in steps of a cent."""
    cents = 0
    while cents <= 100:
        try:
            budget.reserve(worst := Amount(pico=pico(Decimal(cents + 1) / 100)))
        except BudgetError:
            break
        budget.settle(worst, Amount())
        cents += 1
    return Decimal(cents) / 100


def test_a_developers_day_holds_over_all_runs(plan: Plan, ledger: Ledger) -> None:
    """What another run spent between the gate's look and the lock counts."""
    spend(ledger, "0.9", "another")

    budget = budget_of(permit(), plan, ledger, "mine")

    assert Decimal("0.10") == room(budget)
    with pytest.raises(BudgetError, match=r"of \$1\.0000 a UTC day: go on after midnight UTC"):
        budget.reserve(Amount(pico=pico("0.11")))


def test_a_resumed_run_has_what_is_left_of_its_budget(plan: Plan, ledger: Ledger) -> None:
    spend(ledger, "0.5", "mine")

    assert Decimal("0.30") == room(budget_of(permit(), plan, ledger, "mine"))


def test_a_new_day_is_a_new_dollar(plan: Plan, ledger: Ledger, clock: Clock) -> None:
    spend(ledger, "0.9", "another")
    clock.now = NOON + timedelta(days=1)

    assert Decimal("0.80") == room(budget_of(permit(), plan, ledger, "mine"))


def test_cis_word_has_no_day_but_a_probe_has_one_whoever_signed(plan: Plan, ledger: Ledger) -> None:
    spend(ledger, "0.9", "another")

    generate, probe = (budget_of(permit(Scope.CI, kind), plan, ledger, "mine") for kind in (Kind.GENERATE, Kind.PROBE))

    assert [Decimal("0.80"), Decimal("0.10")] == [room(generate), room(probe)]


def test_emulated_money_has_no_day(plan: Plan, ledger: Ledger) -> None:
    emulated = replace(plan, route=Route("emulator", "m/k", "chutes"))
    spend(ledger, "0.95", "another")

    assert Decimal("0.80") == room(budget_of(permit(), emulated, ledger, "mine"))


def test_the_gate_is_told_what_the_run_in_the_folder_spent(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tmp_path))
    plan.prompts.write_text("")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    spend(ledger, "0.5", "mine")
    spend(ledger, "0.1", "another")
    ledger.close()
    before = job_of(plan).spent_pico
    plan.out.mkdir()
    manifest.write(plan.out, Manifest("mine", {}))

    assert (0, pico("0.5")) == (before, job_of(plan).spent_pico)


def test_a_days_own_caps_hold_over_all_runs_through_the_same_api(plan: Plan, ledger: Ledger) -> None:
    spend(ledger, "0.1", "another")
    capped = replace(plan, caps=Caps(day_requests=2))
    budget = budget_of(permit(Scope.CI), capped, ledger, "mine")
    budget.reserve(Amount(1, 1, 1))

    with pytest.raises(BudgetError, match="3 of 2 requests a UTC day"):
        budget.reserve(Amount(1, 1, 1))


def test_a_runs_tokens_are_capped_over_its_sessions(plan: Plan, ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.claim(Request("r", "mine", PAID, "row", b"{}", 1, worst_tokens=900), lambda: None)
    budget = budget_of(permit(), replace(plan, caps=Caps(tokens=1000)), ledger, "mine")

    with pytest.raises(BudgetError, match="1001 of 1000 tokens a run"):
        budget.reserve(Amount(1, 101, 1))


def test_no_more_is_spent_than_the_key_has_left(plan: Plan, ledger: Ledger) -> None:
    assert Decimal("0.05") == room(budget_of(permit(), plan, ledger, "mine", Decimal("0.05")))
