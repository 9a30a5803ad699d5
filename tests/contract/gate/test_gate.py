"""The gate's judgement: what each kind of job needs, and that it fails closed."""

from __future__ import annotations

import marshal
import py_compile
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from pathlib import Path

import pytest

from harness.fixtures.trees import NOW, Tree, kill_table, small_tree
from pipeline.base.money import pico
from pipeline.formats.tokenizer import KIMI_SHA256
from pipeline.gate import gate
from pipeline.gate.attestation import Scope
from pipeline.gate.digests import file_sha256
from pipeline.records import Json, Route

pytestmark = pytest.mark.contract

PAID = Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow")
LIVE = {"groups": ["base", "live:openrouter/siliconflow"]}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return small_tree(tmp_path)


def live(tree: Tree, *, days: int = 1, scope: Scope = Scope.DEV) -> None:
    """Attest a paid route that was proven on recordings of that age."""
    key = tree.new_ci_key() if scope is Scope.CI else None
    recorded = {"openrouter/siliconflow moonshotai/kimi-k2.5": (NOW - timedelta(days=days)).isoformat()}
    kills = kill_table(tree.root).document()
    tree.attest(key=key, scope=scope, groups=list(LIVE["groups"]), liveCassettes=dict(recorded), kills=kills)


def probe(tree: Tree, **changes: object) -> gate.Job:
    """A probe of the paid route with the committed prompts, but for the changes."""
    committed = file_sha256(tree.root / gate.PROBES)
    return tree.job(**{"kind": gate.Kind.PROBE, "route": PAID, "budget_usd": 1, "prompts_sha256": committed, **changes})


def whats(decision: gate.Decision) -> list[str]:
    return [objection.what for objection in decision.objections]


def test_a_clean_tree_gives_a_permit_that_says_what_it_is_for(tree: Tree) -> None:
    decision = tree.decide()

    assert () == decision.objections
    assert decision.permit is not None
    assert (Scope.DEV, tree.job(), NOW + timedelta(hours=24)) == (
        decision.permit.scope,
        decision.permit.job,
        decision.permit.expires,
    )


def test_bytecode_that_is_not_its_source_shuts_the_gate(tree: Tree) -> None:
    source = tree.root / "pipeline" / "forged.py"
    source.write_text("PRICE = 1\n")
    cache = Path(py_compile.compile(str(source), doraise=True) or "")
    tree.attest()
    assert tree.decide().allowed

    cache.write_bytes(cache.read_bytes()[:16] + marshal.dumps(compile("PRICE = 0\n", "forged.py", "exec")))
    (objection,) = tree.decide().objections

    assert "holds other code than its source" in objection.what


def test_a_permit_cannot_be_changed(tree: Tree) -> None:
    permit = tree.decide().permit

    with pytest.raises(FrozenInstanceError):
        permit.budget_usd = 100  # type: ignore[misc, union-attr]


def test_all_that_is_wrong_is_said_at_once(tree: Tree) -> None:
    (tree.root / "conftest.py").write_text("")
    (tree.root / "goldens" / "a.json").write_text("{}")

    found = whats(tree.decide(runtime={"optimize": 1, "pythonpath": "/x", "isolated": False}))

    assert 5 == len(found)
    assert "changed since the contract suite passed: goldens/" == found[-1]


def test_a_changed_recording_may_be_undone_or_made_anew(tree: Tree) -> None:
    (tree.root / "goldens" / "a.json").write_text("{}")

    (objection,) = tree.decide().objections

    undo = "after git checkout goldens/ (to undo it) or nox -s goldens (to make it anew)"
    assert f"nox -s contract, {undo}" == objection.mend


def test_an_error_of_the_gate_itself_keeps_it_shut(tree: Tree) -> None:
    decision = tree.decide(runtime={"distributions": ((None, None),)})

    assert not decision.allowed
    assert "the gate could not judge (" in whats(decision)[0]


def test_a_job_that_cannot_be_judged_keeps_it_shut(tree: Tree) -> None:
    decision = tree.decide(tree.job(budget_usd="much"))

    assert not decision.allowed
    assert "the gate could not judge (TypeError" in whats(decision)[0]


def test_a_tree_that_is_not_there_keeps_it_shut(tree: Tree) -> None:
    job = tree.job()
    tree.root.rename(tree.root.parent / "gone")

    assert not tree.decide(job).allowed


def test_require_raises_with_a_line_for_each_reason(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In this process, which is not isolated, it can but raise."""
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tmp_path / "state"))

    with pytest.raises(gate.GateShutError) as caught:
        gate.require(tree.job(), root=tree.root)

    lines = str(caught.value).splitlines()
    assert any("there is no attestation at" in line for line in lines)
    assert all(line.startswith("refused: ") and ". Run: " in line for line in lines)


# Groups


def test_the_group_base_is_needed(tree: Tree) -> None:
    tree.attest(groups=["live:x"])

    assert ["the attestation lacks the group base"] == whats(tree.decide())


def test_a_real_model_needs_the_group_of_its_tokenizer(tree: Tree) -> None:
    job = tree.job(format="kimi-k2.5", tokenizer_sha256=KIMI_SHA256)

    (objection,) = tree.decide(job).objections

    assert "no contract of kimi-k2.5 tokenizer b6c497a7469b has passed" == objection.what
    assert "DRAFTER_GATE_TOKENIZERS=DIR nox -s contract" == objection.mend


def test_a_real_model_is_allowed_once_its_group_passed(tree: Tree) -> None:
    tree.attest(groups=["base", f"tokenizer:{KIMI_SHA256}"])

    assert tree.decide(tree.job(format="kimi-k2.5", tokenizer_sha256=KIMI_SHA256)).allowed


def test_a_job_without_a_tokenizer_is_refused(tree: Tree) -> None:
    assert "the job names no tokenizer" in whats(tree.decide(tree.job(tokenizer_sha256=None)))[0]


def test_training_needs_the_group_of_the_drafter(tree: Tree) -> None:
    tree.attest(groups=["base"])

    (objection,) = tree.decide(gate.Job(gate.Kind.TRAIN)).objections

    assert "no contract of the drafter has passed: its masks, losses, vocabulary, export and decoding" == objection.what
    assert "nox -s contract_drafter" == objection.mend
    assert tree.decide().allowed


def test_training_needs_no_other_group_than_base_and_drafter(tree: Tree) -> None:
    tree.attest(groups=["base", "drafter"])

    assert tree.decide(gate.Job(gate.Kind.TRAIN)).allowed


def test_training_on_rows_of_a_tokenizer_needs_its_group_too(tree: Tree) -> None:
    job = gate.Job(gate.Kind.TRAIN, format="kimi-k2.5", tokenizer_sha256=KIMI_SHA256)
    tree.attest(groups=["base", "drafter"])

    assert ["no contract of kimi-k2.5 tokenizer b6c497a7469b has passed"] == whats(tree.decide(job))


# Route and feature


def test_a_feature_that_a_contract_covers_is_allowed(tree: Tree) -> None:
    assert tree.decide(tree.job(features=frozenset({"stream"}))).allowed


def test_features_that_no_contract_covers_are_named(tree: Tree) -> None:
    found = whats(tree.decide(tree.job(features=frozenset({"stream", "image", "audio"}))))

    assert ["no contract on emulator/chutes that passed covers: audio, image"] == found


def test_a_contract_on_another_route_covers_nothing(tree: Tree) -> None:
    route = Route("emulator", "drafter-gate/tiny-kimi", "atlascloud")

    assert not tree.decide(tree.job(route=route, features=frozenset({"stream"}))).allowed


# Live proof


RECORD = (
    "nox -s cassettes -- --live --route openrouter/siliconflow --model moonshotai/kimi-k2.5 --budget-usd 0.50,"
    " then nox -s contract"
)


def test_a_paid_route_without_live_proof_is_refused(tree: Tree) -> None:
    (objection,) = tree.decide(tree.job(route=PAID, budget_usd=0.5)).objections

    assert "the attestation has no live recording of openrouter/siliconflow moonshotai/kimi-k2.5" == objection.what
    assert RECORD == objection.mend


def test_a_live_recording_without_its_contract_opens_nothing(tree: Tree) -> None:
    recorded: dict[str, Json] = {"openrouter/siliconflow moonshotai/kimi-k2.5": NOW.isoformat()}
    tree.attest(groups=["base"], liveCassettes=recorded)

    (objection,) = tree.decide(tree.job(route=PAID, budget_usd=0.5)).objections

    assert "the attestation has no live recording of openrouter/siliconflow moonshotai/kimi-k2.5" == objection.what


def test_live_proof_of_another_model_on_the_route_opens_nothing(tree: Tree) -> None:
    live(tree)

    assert not tree.decide(tree.job(route=replace(PAID, model="qwen/qwen3-32b"), budget_usd=0.5)).allowed


def test_a_paid_route_with_live_proof_in_age_is_allowed(tree: Tree) -> None:
    live(tree, days=90)

    assert tree.decide(tree.job(route=PAID, budget_usd=0.5)).allowed


def test_live_proof_past_its_age_is_refused(tree: Tree) -> None:
    live(tree, days=91)

    (objection,) = tree.decide(tree.job(route=PAID, budget_usd=0.5)).objections

    what = "the oldest live recording of openrouter/siliconflow moonshotai/kimi-k2.5 is 91 days old, limit 90"
    assert what == objection.what
    assert RECORD == objection.mend


def test_a_probe_needs_no_live_proof_and_no_coverage(tree: Tree) -> None:
    assert tree.decide(probe(tree, features=frozenset({"image"}))).allowed


@pytest.mark.parametrize("sha256", [None, "", "ab" * 32])
def test_a_probe_of_other_prompts_is_refused(tree: Tree, sha256: str | None) -> None:
    (objection,) = tree.decide(probe(tree, prompts_sha256=sha256)).objections

    assert "a probe sends the prompts of goldens/probes.jsonl alone, and these are others" == objection.what


def test_a_tree_without_probes_sends_none(tree: Tree) -> None:
    (tree.root / gate.PROBES).unlink()
    tree.attest()

    assert not tree.decide(tree.job(kind=gate.Kind.PROBE, route=PAID, prompts_sha256="")).allowed


def test_a_probe_needs_the_group_of_its_tokenizer(tree: Tree) -> None:
    found = whats(tree.decide(probe(tree, format="kimi-k2.5", tokenizer_sha256=KIMI_SHA256)))

    assert ["no contract of kimi-k2.5 tokenizer b6c497a7469b has passed"] == found


# Money


def test_a_developer_may_spend_a_dollar_a_day_in_all(tree: Tree) -> None:
    live(tree)

    assert tree.decide(tree.job(route=PAID, budget_usd=0.3), spent_today_pico=pico("0.7")).allowed


def test_one_pico_dollar_more_is_refused_with_what_is_left(tree: Tree) -> None:
    live(tree)

    (objection,) = tree.decide(tree.job(route=PAID, budget_usd=0.3), spent_today_pico=pico("0.7") + 1).objections

    assert "unlocks $1.0000 a UTC day in all: $0.700000000001 is spent, $0.3000 asked" in objection.what
    assert "--budget-usd 0.299999999999" in objection.mend


def test_a_resumed_run_is_asked_only_for_what_it_may_still_spend(tree: Tree) -> None:
    live(tree)
    resumed = tree.job(route=PAID, budget_usd=0.8, spent_pico=pico("0.5"))

    assert tree.decide(resumed, spent_today_pico=pico("0.7")).allowed
    (objection,) = tree.decide(resumed, spent_today_pico=pico("0.75")).objections

    assert "$0.7500 is spent, $0.3000 more asked" in objection.what
    assert "--budget-usd 0.7500" in objection.mend


def test_a_run_that_spent_more_than_its_budget_asks_for_nothing(tree: Tree) -> None:
    live(tree)
    over = tree.job(route=PAID, budget_usd=0.2, spent_pico=pico("0.5"))

    assert tree.decide(over, spent_today_pico=pico(1)).allowed
    assert not tree.decide(over, spent_today_pico=pico(1) + 1).allowed


def test_what_a_run_spent_cannot_be_less_than_nothing(tree: Tree) -> None:
    live(tree)

    assert not tree.decide(tree.job(route=PAID, budget_usd=0.5, spent_pico=-1)).allowed


def test_ci_unlocks_more_than_a_dollar(tree: Tree) -> None:
    live(tree, scope=Scope.CI)

    assert tree.decide(tree.job(route=PAID, budget_usd=40), spent_today_pico=pico(300)).allowed


def test_a_probe_is_capped_whoever_signed(tree: Tree) -> None:
    live(tree, scope=Scope.CI)

    (objection,) = tree.decide(probe(tree, budget_usd=1.01)).objections

    assert "a probe unlocks $1.0000 a UTC day in all: $0.0000 is spent, $1.0100 asked" == objection.what
    assert "python -m pipeline probe … --budget-usd 1.0000, or wait for the next UTC day" == objection.mend


def test_emulated_money_is_not_capped(tree: Tree) -> None:
    assert tree.decide(tree.job(budget_usd=1000)).allowed


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1.0])
def test_a_budget_that_is_no_amount_is_refused(tree: Tree, budget: float) -> None:
    live(tree)

    assert "is no amount" in whats(tree.decide(tree.job(route=PAID, budget_usd=budget)))[0]


def test_a_negative_spend_is_refused(tree: Tree) -> None:
    live(tree)

    assert not tree.decide(tree.job(route=PAID, budget_usd=0.5), spent_today_pico=-1).allowed


# After the run


def test_a_tree_that_stood_still_has_not_moved(tree: Tree) -> None:
    permit = tree.decide().permit

    assert permit is not None
    assert () == gate.moved(permit, tree.root)


def test_what_moved_during_a_run_is_named(tree: Tree) -> None:
    permit = tree.decide().permit
    (tree.root / "pipeline" / "gate.py").write_text("shut = False\n")

    assert permit is not None
    assert ("pipeline/",) == gate.moved(permit, tree.root)
