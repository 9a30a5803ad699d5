"""The breaker: shares of a window, canaries, cost, trips, and loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generation.breaker import (
    CANARIES,
    COST_LEAST,
    COST_WINDOW,
    LEAST,
    LEAST_CANARIES,
    LONGEST,
    TAIL,
    TIMES,
    WINDOW,
    Breaker,
    RowSigns,
    Sign,
    Trip,
    is_loop,
    limits_of,
    row_signs_of,
)
from pipeline.generation.outcome import Outcome, Row, Status
from pipeline.records import Prompt, Reason, Refusal

pytestmark = pytest.mark.contract


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
def test_a_share_above_the_limit_trips_and_one_at_it_does_not(sign: Sign, limit: int) -> None:
    breaker = Breaker()
    feed(breaker, WINDOW)

    assert spread(breaker, limit, sign, every=2) is None
    assert breaker.see(seen(999, sign)) is not None


@pytest.mark.parametrize("sign", [Sign.REFUSED, Sign.LENGTH_CUT, Sign.ERROR])
def test_when_nearly_all_are_bad_the_short_window_trips(sign: Sign) -> None:
    breaker = Breaker()
    feed(breaker, WINDOW)

    trip = feed(breaker, 30, sign)

    assert trip is not None
    assert (28 / 30, 0.9, 30) == (trip.value, trip.limit, trip.window)


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
def test_a_bad_provider_is_noticed_over_many_datasets(datasets: int) -> None:
    """Each dataset alone has too few rows for its own window."""
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


def test_a_row_at_over_three_times_the_first_cost_trips() -> None:
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


def test_a_later_dataset_is_measured_by_its_own_first_rows() -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        " " * 240,
        "\n" * 4096,
        "Let me think. " + "Wait, no. " * 40,
        "A" * 5000 + "the same long sentence comes again and again, " * 12,
        "So: " + "好的，" * 100,
        ("x" * 255 + "y") * 6,
    ],
)
def test_a_phrase_said_over_and_over_at_the_end_is_a_loop(text: str) -> None:
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " " * 239,
        "Wait, no. " * 40 + "Here is the answer: 42.",
        "".join(f"{number}. item\n" for number in range(400)),
        "the same long sentence of many words, said five times only and no more than that, " * 5,
        ("x" * 256 + "y") * 7,
        "".join(chr(0x4E00 + number) for number in range(3000)),
    ],
)
def test_an_end_that_differs_is_no_loop(text: str) -> None:
    assert not is_loop(text)


@given(
    st.text("ab", max_size=12), st.text("abc", min_size=1, max_size=70), st.integers(1, 60), st.text("a", max_size=2)
)
def test_a_loop_is_found_exactly_where_its_definition_holds(lead: str, phrase: str, times: int, end: str) -> None:
    text = lead + phrase * times + end
    tail = text[-TAIL:]
    periods = range(1, LONGEST + 1)
    covered = {period: covers(tail, period) for period in periods}

    assert is_loop(text) == any(length >= max(LEAST, TIMES * period) for period, length in covered.items())


def covers(text: str, period: int) -> int:
    """How much of the end of the text repeats with the period."""
    length = min(period, len(text))
    while length < len(text) and text[-length - 1] == text[-length - 1 + period]:
        length += 1
    return length


@pytest.mark.parametrize("reason, sign", [(Reason.LOOPING, Sign.LOOP), (Reason.COUNT_MISMATCH, Sign.REFUSED)])
def test_a_looping_answer_is_no_sign_of_a_broken_route(reason: Reason, sign: Sign) -> None:
    outcome = Outcome(Row(Prompt("a", ()), ()), Status.ANSWERED, request="r")

    found = row_signs_of(outcome, Refusal(reason, "why"))

    assert found is not None
    assert {sign} == found.signs & {Sign.LOOP, Sign.REFUSED}
