"""How many requests may be in flight, and how that number moves."""

from __future__ import annotations

import asyncio

from pipeline.generation.retry import RateLimiter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_more_are_in_flight_than_the_most_that_was_asked_for() -> None:
    async def work() -> int:
        throttle, most, flying = RateLimiter(3), 0, 0

        async def one() -> None:
            nonlocal most, flying
            await throttle.enter()
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0.001)
            flying -= 1
            throttle.leave()

        await asyncio.gather(*(one() for _ in range(20)))
        return most

    assert 3 == asyncio.run(work())


def test_a_refusal_halves_the_number_once_for_all_that_were_in_flight_together() -> None:
    clock = Clock()
    throttle = RateLimiter(64, clock=clock)
    entered = clock.now
    clock.now += 1
    for _ in range(64):
        throttle.turned_away(entered, 0.0)
    once = throttle.limit
    clock.now += 1
    throttle.turned_away(clock.now, 0.0)

    assert (32, 16) == (once, throttle.limit)


def test_answers_bring_the_number_back_one_a_round() -> None:
    throttle = RateLimiter(10, clock=Clock())
    throttle.turned_away(101.0, 0.0)
    for _ in range(5):
        throttle.answered()
    after_a_round = throttle.limit
    for _ in range(100):
        throttle.answered()

    assert (5, 10) == (after_a_round, throttle.limit)


def test_one_is_always_let_through() -> None:
    throttle, clock = RateLimiter(2), Clock()
    for number in range(9):
        throttle.turned_away(clock.now + number * 1e9, 0.0)

    assert 1 == throttle.limit


def test_nothing_is_sent_before_a_wait_that_was_named_is_over() -> None:
    async def work() -> float:
        throttle = RateLimiter(4)
        begun = await throttle.enter()
        throttle.leave()
        throttle.turned_away(begun, 0.05)
        return await throttle.enter() - begun

    assert asyncio.run(work()) >= 0.05


def test_closing_lets_all_that_wait_go_on() -> None:
    async def work() -> bool:
        throttle = RateLimiter(1)
        await throttle.enter()
        waiting = asyncio.create_task(throttle.enter())
        await asyncio.sleep(0)
        throttle.close()
        await asyncio.wait_for(waiting, 1)
        return waiting.done()

    assert asyncio.run(work())
