"""Engine seconds: shares of the requests in flight add up to the time in which there were any."""

from __future__ import annotations

import pytest

from pipeline.generation.engines.server import BusyClock, RequestSeconds


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_in_flight_together_share_each_second_alike() -> None:
    clock = Clock()
    busy = BusyClock(clock)
    with busy.share() as first:
        clock.now += 4
        with busy.share() as second:
            clock.now += 2
        clock.now += 1

    assert (4 + 1 + 1, 1) == (first.seconds, second.seconds)


def test_time_in_which_nothing_is_in_flight_is_nobodys() -> None:
    clock = Clock()
    busy = BusyClock(clock)
    with busy.share() as first:
        clock.now += 1
    clock.now += 50
    with busy.share() as second:
        clock.now += 2

    assert (1, 2) == (first.seconds, second.seconds)


def test_one_that_fails_has_its_share_too() -> None:
    clock = Clock()
    share = RequestSeconds()

    def fail() -> None:
        nonlocal share
        with BusyClock(clock).share() as share:
            clock.now += 3
            raise ValueError("cut")

    with pytest.raises(ValueError, match="cut"):
        fail()

    assert 3 == share.seconds
