"""Loops at the end of ids, and what is none."""

from __future__ import annotations

import random

import pytest

from pipeline.base.loops import LONGEST_PERIOD, SHORTEST_LOOP, is_looping, loop_period

pytestmark = pytest.mark.contract

TALK = random.Random(7).sample(range(10_000), 2000)


@pytest.mark.parametrize("period", [1, 2, 3, 7, 64, 300, LONGEST_PERIOD])
@pytest.mark.parametrize("rest", [0, 1])
def test_a_loop_is_found_wherever_its_stretch_is_cut(period: int, rest: int) -> None:
    phrase = TALK[:period]
    ids = TALK[1000:1010] + phrase * max(5, SHORTEST_LOOP // period + 1) + phrase[: rest * period // 2]

    assert period == loop_period(ids)


@pytest.mark.parametrize("period, times", [(1, 255), (2, 127), (64, 3), (300, 4), (513, 6)])
def test_less_than_a_loop_is_none(period: int, times: int) -> None:
    assert loop_period(TALK[1000:1010] + TALK[:period] * times) is None


def test_a_numbered_list_and_lines_that_count_are_no_loop() -> None:
    assert loop_period([token for number in range(500) for token in (number, 11, 12, 13)]) is None


@pytest.mark.parametrize("ids", [[], [1], [1, 1]])
def test_hardly_any_ids_are_no_loop(ids: list[int]) -> None:
    assert loop_period(ids) is None


def test_the_end_token_does_not_hide_a_loop() -> None:
    ids = [7] * 300 + [2]

    assert not is_looping(ids, [], ended=False)
    assert is_looping(ids, [], ended=True)


def test_a_part_that_was_left_in_a_loop_is_found() -> None:
    ids = [7] * 300 + [3, *TALK[:40], 2]

    assert is_looping(ids, [(0, 300), (301, 341)], ended=True)
