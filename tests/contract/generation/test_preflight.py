"""What is known before the first request: evidence, cost, and form."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.runs import byte_format
from pipeline.base.money import pico
from pipeline.generation.breaker import Sign
from pipeline.generation.ledger import State
from pipeline.generation.outcome import StopError
from pipeline.generation.plan import BreakerPolicy, Plan
from pipeline.generation.preflight import (
    ENOUGH,
    LEAST,
    Forecast,
    Range,
    better_form,
    forecast,
    require_fingerprint,
    require_hope,
    require_known_cost,
    require_unpaused,
)
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.records import Json, Route, Sampling, ToolMode
from pipeline.shards.manifest import Manifest

pytestmark = pytest.mark.contract

BOTH = frozenset({"logprobs", "return_token_ids"})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "tokenizer").mkdir()
    where = (tmp_path / "prompts.jsonl", tmp_path / "out", Route("openrouter", "m/k", "atlascloud", stream=True))
    return Plan(*where, Sampling(), ToolMode.RAW, byte_format(tmp_path / "tokenizer"), budget_pico=pico(1))


def fingerprint(seam: Json, *, proven: bool = True) -> Fingerprint:
    return Fingerprint("AtlasCloud", "m/k", stream=True, traits={TraitName.SEAM: Trait(seam, 90, proven)})


@pytest.mark.parametrize(
    "found, supported, words",
    [
        (fingerprint("stripped"), BOTH, "is stripped, so every row would be paid for and refused. Use --logprobs or"),
        (fingerprint("added"), frozenset({"return_token_ids"}), "Use --return-token-ids"),
        (
            fingerprint("kept", proven=False),
            frozenset[str](),
            "seam_space is not proven, so .* Choose another provider",
        ),
    ],
)
def test_a_paid_route_that_proves_nothing_is_refused(
    found: Fingerprint, supported: frozenset[str], words: str, plan: Plan
) -> None:
    with pytest.raises(StopError, match=words):
        require_hope(plan, found, supported)


def test_a_flag_that_the_endpoint_lacks_gives_no_hope(plan: Plan) -> None:
    asked = replace(plan, sampling=Sampling(logprobs=True))

    with pytest.raises(StopError, match="Use --return-token-ids"):
        require_hope(asked, fingerprint("stripped"), frozenset({"return_token_ids"}))


def test_what_can_still_be_proven_is_asked_in_silence(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    require_hope(plan, fingerprint("kept"), BOTH)
    require_hope(replace(plan, sampling=Sampling(logprobs=True)), fingerprint("stripped"), BOTH)
    require_hope(replace(plan, sampling=Sampling(return_token_ids=True)), fingerprint("stripped"), BOTH)

    assert not capsys.readouterr().err


def test_a_paid_route_needs_a_fingerprint_or_returned_ids(plan: Plan) -> None:
    with pytest.raises(StopError, match="has no fingerprint in goldens/fingerprints"):
        require_fingerprint(plan, None)

    require_fingerprint(plan, fingerprint("kept"))
    require_fingerprint(replace(plan, sampling=Sampling(return_token_ids=True)), None)


def test_a_run_that_the_breaker_paused_stays_paused(plan: Plan) -> None:
    paused = Manifest("r", {}, result={"paused": {"sign": "loop", "sentence": "loop: 25 of the last 240 rows"}})

    with pytest.raises(StopError, match=r"paused by the breaker: loop: 25 of the last 240 rows.*--accept-trip loop"):
        require_unpaused(paused, plan)
    with pytest.raises(StopError, match="paused by the breaker"):
        require_unpaused(paused, replace(plan, watch=BreakerPolicy(accepted=frozenset({Sign.ERROR}))))

    require_unpaused(paused, replace(plan, watch=BreakerPolicy(resume=True)))
    require_unpaused(paused, replace(plan, watch=BreakerPolicy(accepted=frozenset({Sign.LOOP}))))
    require_unpaused(Manifest("r", {}), plan)


@pytest.mark.parametrize(
    "cost, spent, is_known",
    [
        ({"usd": "0.000000000024", "settled_requests": 2}, {State.SETTLED: (2, 24)}, True),
        ({"usd": "0.000000000024", "settled_requests": 2}, {State.SETTLED: (2, 23)}, False),
        ({"usd": "0.000000000024", "settled_requests": 2}, {State.SETTLED: (1, 24)}, False),
        ({"usd": "0", "unsettled_requests": 1}, {State.UNKNOWN: (1, 100)}, True),
        ({"usd": "0", "unsettled_requests": 1}, {}, False),
        ({"usd": "much"}, {}, False),
    ],
)
def test_a_ledger_that_knows_less_than_the_manifest_is_refused(
    cost: dict[str, Json], spent: dict[State, tuple[int, int]], is_known: bool, tmp_path: Path
) -> None:
    found = Manifest("r", {}, result={"cost": cost})

    with nullcontext() if is_known else pytest.raises(StopError):
        require_known_cost(found, spent, tmp_path, tmp_path / "ledger.sqlite")


def test_answers_that_all_cost_the_same_leave_no_doubt() -> None:
    assert Range(1000, 1000, 100) == forecast([10] * 100, 100)


def test_the_range_holds_the_mean_and_narrows_with_the_sample() -> None:
    few, many = forecast([5, 15] * 10, 1000), forecast([5, 15] * 500, 1000)

    assert few is not None
    assert many is not None
    assert few.low < many.low < 10_000 < many.high < few.high


def test_a_small_sample_gives_no_range() -> None:
    assert forecast([10] * (ENOUGH - 1), 100) is None


def test_a_range_is_never_below_nothing() -> None:
    found = forecast([0] * 19 + [1000], 10)

    assert found is not None
    assert 0 == found.low


@pytest.mark.parametrize("rows, due", [(1000, LEAST), (83_000, 830)])
def test_a_budget_that_will_not_hold_trips_once(rows: int, due: int) -> None:
    """When a hundredth of the rows is asked."""
    watch = Forecast(rows, budget=rows * 10 - 1)
    found = [watch.see(10) for _ in range(due + 100)]
    trips = [(number, trip) for number, trip in enumerate(found, 1) if trip is not None]

    assert [due] == [number for number, _ in trips]
    rest = (rows - due) * 10
    assert (Sign.BUDGET, rest, rest - 1) == (trips[0][1].sign, trips[0][1].value, trips[0][1].limit)
    assert "as the first" in trips[0][1].sentence


def test_rows_that_were_paid_for_before_cost_nothing_more() -> None:
    watch = Forecast(1000, budget=1000)
    for _ in range(900):
        watch.skip()

    assert not any(watch.see(10) for _ in range(100))


def test_a_budget_that_may_hold_is_left_alone() -> None:
    watch = Forecast(1000, budget=10_000)

    assert not any(watch.see(10) for _ in range(1000))


def test_a_run_that_is_nearly_done_is_not_stopped_by_an_estimate() -> None:
    watch = Forecast(LEAST, budget=1)

    assert not any(watch.see(10) for _ in range(LEAST))


def test_what_the_user_accepted_is_not_said() -> None:
    watch = Forecast(1000, budget=1, ignored=True)

    assert not any(watch.see(10) for _ in range(1000))


MODEL = "moonshotai/kimi-k2.5"


def form(
    *, stream: bool, native: bool = True, seam: str = "kept", deltas: str = "none", proven: bool = True
) -> Fingerprint:
    values: dict[TraitName, Json] = {TraitName.COUNT_NATIVE: native, TraitName.SEAM: seam, TraitName.DELTAS: deltas}
    traits = {str(name): Trait(value, 30, proven) for name, value in values.items()}
    return Fingerprint("Moonshot AI", MODEL, stream, traits)


@pytest.mark.parametrize(
    "stream, body, expected",
    [
        ({"deltas": "tokens"}, {}, True),
        ({"deltas": "batches"}, {}, True),
        ({"native": False}, {}, False),
        ({"seam": "stripped"}, {}, False),
        ({"proven": False}, {}, False),
        ({"seam": "stripped"}, {"seam": "stripped"}, True),
    ],
)
def test_the_form_that_proves_more_is_asked_for(stream: dict[str, Json], body: dict[str, Json], expected: bool) -> None:
    known = [form(stream=True, **stream), form(stream=False, **body)]  # type: ignore[arg-type]  # form's own arguments

    assert expected == better_form("openrouter/moonshotai", MODEL, known)


def test_a_route_of_which_nothing_is_known_is_asked_for_a_stream() -> None:
    other = form(stream=False)

    assert better_form("openrouter/novita", MODEL, [other])
    assert better_form("openrouter/moonshotai", "another/model", [other])
    assert better_form("local", MODEL, [other])
