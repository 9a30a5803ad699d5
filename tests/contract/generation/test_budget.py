"""Budget: caps hold under any concurrency, exactly."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.money import MOST_PICO, pico, usd_text
from pipeline.generation.budget import Amount, Budget, BudgetError, Cap

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    "usd, expected",
    [
        ("1", 10**12),
        ("0.50", 5 * 10**11),
        (0.1, 10**11),
        (1e-05, 10**7),
        ("0.0004970133333333333", 497_013_334),
        (Decimal("0.0000000000001"), 1),
        (0, 0),
    ],
)
def test_an_amount_is_its_decimal_rounded_up_to_pico_dollars(usd: Decimal | float | str, expected: int) -> None:
    assert expected == pico(usd)


@pytest.mark.parametrize("usd", ["-1", "NaN", "inf", "a dollar", "", "1e30", float("inf") * 0])
def test_what_is_no_amount_is_an_error_that_shows_it(usd: float | str) -> None:
    with pytest.raises(ValueError, match="USD"):
        pico(usd)


@given(st.integers(min_value=0, max_value=MOST_PICO))
def test_text_and_amount_are_inverse(amount: int) -> None:
    assert amount == pico(usd_text(amount))


def test_text_is_exact_and_has_four_decimals_at_least() -> None:
    expected = ["0.0000", "1.5000", "0.000012345", "-0.0001"]

    assert expected == [usd_text(amount) for amount in (0, 1_500_000_000_000, 12_345_000, -100_000_000)]


def test_a_reservation_that_does_not_fit_holds_nothing() -> None:
    budget = Budget(Cap("run", pico=10))
    budget.reserve(Amount(pico=7))

    with pytest.raises(BudgetError, match=r"\$0\.000000000011 of \$0\.00000000001 a run"):
        budget.reserve(Amount(pico=4))

    assert (Amount(pico=7), Amount()) == (budget.reserved, budget.used)


def test_a_refusal_says_whether_money_in_flight_may_come_back() -> None:
    budget = Budget(Cap("run", pico=10))
    with pytest.raises(BudgetError) as alone:
        budget.reserve(Amount(11, 0, 1))
    budget.reserve(Amount(7, 0, 1))
    with pytest.raises(BudgetError) as crowded:
        budget.reserve(Amount(7, 0, 1))

    assert (False, True) == (alone.value.in_flight, crowded.value.in_flight)


def test_earlier_use_counts_and_what_comes_back_is_free() -> None:
    budget = Budget(Cap("run", pico=10, used=Amount(pico=4)))
    budget.reserve(Amount(pico=6))
    budget.settle(Amount(pico=6), Amount(pico=2))
    budget.reserve(Amount(pico=4))

    assert (Amount(pico=2), Amount(pico=4)) == (budget.used, budget.reserved)


@pytest.mark.parametrize(
    "cap", [Cap("day", pico=5), Cap("day", tokens=50), Cap("day", requests=5)], ids=["money", "tokens", "requests"]
)
def test_each_measure_of_each_cap_holds(cap: Cap) -> None:
    budget = Budget(Cap("run", pico=1000), cap)
    for _ in range(5):
        budget.reserve(Amount(1, 10, 1))

    with pytest.raises(BudgetError, match="a day"):
        budget.reserve(Amount(1, 10, 1))


def test_no_race_of_threads_reserves_more_than_the_cap() -> None:
    budget = Budget(Cap("run", pico=1000))
    start = threading.Barrier(16)
    held: list[int] = []

    def grab() -> None:
        start.wait()
        for _ in range(200):
            try:
                budget.reserve(Amount(pico=3))
            except BudgetError:
                return
            held.append(3)

    threads = [threading.Thread(target=grab) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (999, 999) == (sum(held), budget.reserved.pico)
