"""What a run will cost, and when it says that the budget will not hold."""

from __future__ import annotations

import pytest

from pipeline.generation.breaker import Sign
from pipeline.generation.preflight import ENOUGH, LEAST, Forecast, Range, forecast


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
def test_a_budget_that_will_not_hold_is_said_once_when_a_hundredth_is_asked(rows: int, due: int) -> None:
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
