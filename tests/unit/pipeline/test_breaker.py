"""The breaker: shares of a window, canaries, cost, and what a trip says."""

from __future__ import annotations

import pytest

from pipeline.breaker import CANARIES, LEAST_CANARIES, WINDOW, Breaker, Seen, Sign, Trip, limits_of


def seen(number: int, *signs: Sign, dataset: str = "", pico: int = 10) -> Seen:
    return Seen(f"r{number}", dataset, Sign.REFUSED not in signs, frozenset(signs), pico)


def feed(breaker: Breaker, count: int, *signs: Sign, dataset: str = "", pico: int = 10, first: int = 0) -> Trip | None:
    """The trip that one of `count` like rows caused."""
    found = [breaker.see(seen(first + number, *signs, dataset=dataset, pico=pico)) for number in range(count)]
    return next((trip for trip in found if trip is not None), None)


def test_good_rows_never_trip() -> None:
    breaker = Breaker()

    assert feed(breaker, 1000) is None
    assert breaker.judge_canaries() is None


@pytest.mark.parametrize("sign, limit", [(Sign.REFUSED, 30), (Sign.LENGTH_CUT, 30), (Sign.ERROR, 15), (Sign.EMPTY, 6)])
def test_a_share_of_the_window_above_the_limit_trips_and_one_at_it_does_not(sign: Sign, limit: int) -> None:
    breaker = Breaker()
    feed(breaker, WINDOW)

    assert feed(breaker, limit, sign) is None
    assert breaker.see(seen(999, sign)) is not None


def test_one_answer_from_another_provider_is_one_too_many() -> None:
    trip = Breaker().see(seen(7, Sign.WRONG_PROVIDER, Sign.REFUSED))

    assert trip is not None
    assert (Sign.WRONG_PROVIDER, ("r7",), 10) == (trip.sign, trip.rows, trip.spent_pico)
    assert "wrong_provider: 1 of the last 60 rows (2%, limit 0%)" == trip.sentence


def test_rows_that_left_the_window_are_forgotten() -> None:
    breaker = Breaker()
    for _ in range(10):
        assert feed(breaker, 30, Sign.REFUSED) is None
        assert feed(breaker, 60) is None


def test_datasets_are_judged_apart() -> None:
    breaker = Breaker()
    for number in range(31):
        trip = breaker.see(seen(number, Sign.REFUSED, dataset="B1"))
        assert feed(breaker, 9, dataset="B4") is None

    assert trip is not None
    assert "B1" == trip.dataset
    assert "of B1" in trip.sentence


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


def test_an_accepted_row_that_costs_more_than_three_times_the_canaries_trips() -> None:
    breaker = Breaker()
    feed(breaker, CANARIES, pico=10)
    breaker.judge_canaries()
    feed(breaker, WINDOW - CANARIES, pico=10)

    trip = feed(breaker, WINDOW, pico=31)

    assert trip is not None
    assert (Sign.COST, 30.0) == (trip.sign, trip.limit)
    assert trip.value > trip.limit


def test_refused_rows_make_the_accepted_ones_dear() -> None:
    breaker = Breaker(limits_of({Sign.REFUSED: 1.0}))
    feed(breaker, CANARIES)
    breaker.judge_canaries()
    feed(breaker, WINDOW)

    trip = feed(breaker, WINDOW, Sign.REFUSED)

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
