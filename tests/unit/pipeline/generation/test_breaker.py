"""The breaker: shares of a window, canaries, cost, and what a trip says."""

from __future__ import annotations

import random

import pytest

from pipeline.generation.breaker import (
    CANARIES,
    COST_LEAST,
    COST_WINDOW,
    LEAST_CANARIES,
    WINDOW,
    Breaker,
    RowSigns,
    Sign,
    Trip,
    limits_of,
)


def seen(number: int, *signs: Sign, dataset: str = "", pico: int = 10, settled: bool = True) -> RowSigns:
    bad = Sign.REFUSED in signs
    return RowSigns(f"r{number}", dataset, not bad, frozenset(signs), pico, pico if settled else None)


def feed(breaker: Breaker, count: int, *signs: Sign, dataset: str = "", pico: int = 10, first: int = 0) -> Trip | None:
    """The trip that one of `count` like rows caused."""
    found = [breaker.see(seen(first + number, *signs, dataset=dataset, pico=pico)) for number in range(count)]
    return next((trip for trip in found if trip is not None), None)


def spread(breaker: Breaker, count: int, *signs: Sign, every: int) -> Trip | None:
    """The trip that one of `count` bad rows caused, each after `every` good ones."""
    for number in range(count):
        feed(breaker, every)
        if (trip := breaker.see(seen(number, *signs))) is not None:
            return trip
    return None


def test_good_rows_never_trip() -> None:
    breaker = Breaker()

    assert feed(breaker, 1000) is None
    assert breaker.judge_canaries() is None


@pytest.mark.parametrize("sign, limit", [(Sign.ERROR, 60), (Sign.EMPTY, 24), (Sign.LOOP, 24)])
def test_a_share_of_the_window_above_the_limit_trips_and_one_at_it_does_not(sign: Sign, limit: int) -> None:
    breaker = Breaker()
    feed(breaker, WINDOW)

    assert spread(breaker, limit, sign, every=2) is None
    assert breaker.see(seen(999, sign)) is not None


@pytest.mark.parametrize("sign", [Sign.REFUSED, Sign.LENGTH_CUT, Sign.ERROR])
def test_when_nearly_all_are_bad_nobody_waits_for_the_window_to_fill(sign: Sign) -> None:
    breaker = Breaker()
    feed(breaker, WINDOW)

    trip = feed(breaker, 30, sign)

    assert trip is not None
    assert (28 / 30, 0.9, 30) == (trip.value, trip.limit, trip.window)


@pytest.mark.parametrize(
    "share, sign", [(0.35, Sign.REFUSED), (0.35, Sign.LENGTH_CUT), (0.03, Sign.LOOP), (0.1, Sign.ERROR)]
)
def test_an_ordinary_long_run_is_not_unlucky(share: float, sign: Sign) -> None:
    draw = random.Random(7)
    breaker = Breaker(ignored={Sign.COST})

    assert not any(breaker.see(seen(n, *([sign] if draw.random() < share else []))) for n in range(83_000))


@pytest.mark.parametrize("sign", [Sign.WRONG_PROVIDER, Sign.OVERCHARGED])
def test_one_answer_that_breaks_the_contract_is_one_too_many(sign: Sign) -> None:
    trip = Breaker().see(seen(7, sign))

    assert trip is not None
    assert (sign, ("r7",), 10) == (trip.sign, trip.rows, trip.spent_pico)
    assert f"{sign}: 1 of the last 240 rows (0%, limit 0%)" == trip.sentence


def test_datasets_are_judged_apart() -> None:
    breaker = Breaker()
    trip = None
    for number in range(30):
        trip = trip or breaker.see(seen(number, Sign.REFUSED, dataset="B1"))
        feed(breaker, 9, dataset="B4")

    assert trip is not None
    assert "B1" == trip.dataset
    assert "of B1" in trip.sentence


@pytest.mark.parametrize("datasets", [4, 20])
def test_a_provider_that_is_bad_for_all_is_noticed_however_many_datasets_there_are(datasets: int) -> None:
    breaker = Breaker()
    found = [breaker.see(seen(number, Sign.REFUSED, dataset=f"D{number % datasets}")) for number in range(30)]

    assert [trip.dataset for trip in found if trip is not None] == [""]


def test_canaries_are_judged_as_if_they_were_all_there_will_be() -> None:
    breaker = Breaker()
    bad = CANARIES // 2 + 1
    feed(breaker, CANARIES - bad)
    feed(breaker, bad, Sign.REFUSED, first=100)
    trip = breaker.judge_canaries()

    assert trip is not None
    assert (17 / 32, 32, ("r100", "r101", "r102", "r103", "r104"), 170) == (
        *(trip.value, trip.window, trip.rows, trip.spent_pico),
    )
    assert "refused: 17 of the first 32 rows (53%, limit 50%)" == trip.sentence


def test_a_dataset_with_few_canaries_is_not_judged_by_them_alone() -> None:
    breaker = Breaker()
    feed(breaker, CANARIES, dataset="B4")
    feed(breaker, LEAST_CANARIES // 2, Sign.REFUSED, dataset="B1")

    assert breaker.judge_canaries() is None


def test_an_accepted_row_that_costs_more_than_three_times_the_first_trips() -> None:
    breaker = Breaker()
    feed(breaker, COST_WINDOW)

    trip = feed(breaker, COST_WINDOW, pico=31)

    assert trip is not None
    assert (Sign.COST, 30.0, COST_WINDOW) == (trip.sign, trip.limit, trip.window)
    assert trip.value > trip.limit


def test_ten_times_the_cost_is_noticed_before_thirty_rows_more() -> None:
    breaker = Breaker()
    feed(breaker, 500)

    assert feed(breaker, 28, pico=100) is not None


def test_a_dataset_that_begins_later_is_measured_by_its_own_first_rows() -> None:
    breaker = Breaker(limits_of({Sign.COST: 3.0}))
    feed(breaker, 200, dataset="B4", pico=100)
    dear = feed(breaker, CANARIES, dataset="B1")

    assert dear is None
    assert feed(breaker, COST_LEAST, dataset="B1", pico=200) is not None


def test_what_is_not_settled_makes_nothing_dear() -> None:
    breaker = Breaker()
    feed(breaker, 200)

    assert not any(breaker.see(seen(number, pico=10_000, settled=number % 20 != 0)) for number in range(0, 200, 20))


def test_refused_rows_make_the_accepted_ones_dear() -> None:
    breaker = Breaker(limits_of({Sign.REFUSED: 1.0}))
    feed(breaker, WINDOW)

    trip = feed(breaker, COST_WINDOW, Sign.REFUSED)

    assert trip is not None
    assert Sign.COST is trip.sign


def test_what_the_user_accepted_does_not_trip() -> None:
    breaker = Breaker(ignored={Sign.REFUSED, Sign.COST})

    assert feed(breaker, 500, Sign.REFUSED) is None
    assert breaker.judge_canaries() is None


def test_the_first_trip_stands() -> None:
    breaker = Breaker()
    first = feed(breaker, 1, Sign.WRONG_PROVIDER)

    assert feed(breaker, 200, Sign.REFUSED, Sign.EMPTY) is None
    assert first is breaker.trip


def test_a_limit_can_be_another() -> None:
    assert Breaker(limits_of({Sign.REFUSED: 0.0})).see(seen(1, Sign.REFUSED)) is not None
