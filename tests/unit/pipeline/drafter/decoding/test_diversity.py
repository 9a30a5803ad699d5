"""Whether outputs repeat themselves."""

from __future__ import annotations

import pytest

from pipeline.drafter.decoding.report import distinct_4grams, loop_length


def test_distinct_is_the_share_of_different_runs_of_four() -> None:
    """1234 2345 and 1234: two of three differ."""
    assert distinct_4grams([(1, 2, 3, 4, 5), (1, 2, 3, 4)]) == pytest.approx(2 / 3)


def test_outputs_below_four_tokens_have_no_share() -> None:
    assert distinct_4grams([(1, 2, 3)]) is None


def test_a_two_token_loop_is_seen() -> None:
    assert loop_length((9, 8, *[1, 2] * 20)) == 40


def test_a_loop_may_break_off_inside_its_period() -> None:
    assert loop_length((7, *[1, 2, 3] * 10, 1)) == 31


def test_a_sentence_said_three_times_over_is_a_loop() -> None:
    assert loop_length((*range(100, 140), *[*range(20)] * 3)) == 60


def test_twice_is_no_loop() -> None:
    assert loop_length((*range(100, 140), *[*range(20)] * 2)) == 0


def test_a_short_repeat_at_the_end_is_no_loop() -> None:
    assert loop_length((*range(100, 140), 5, 5, 5, 5)) == 0


def test_a_loop_that_was_left_is_none() -> None:
    assert loop_length((*[1, 2] * 20, *range(50, 80))) == 0


def test_an_empty_output_is_no_loop() -> None:
    assert loop_length(()) == 0
