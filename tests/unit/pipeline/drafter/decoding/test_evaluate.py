"""How a speculative answer is compared with the plain one."""

from __future__ import annotations

from math import inf

from harness.fixtures.small_drafters import plain
from pipeline.drafter.decoding.evaluate import Difference, compare
from pipeline.drafter.decoding.speculate import SpeculativeDecoding


def test_equal_answers_have_no_difference() -> None:
    assert compare(plain((1, 2)), SpeculativeDecoding((1, 2), (), 1.0)) is None


def test_a_difference_at_a_tie_is_one_and_forgiven() -> None:
    found = compare(plain((1, 2), margin=1e-4), SpeculativeDecoding((1, 3), (), 1.0))

    assert Difference(1, 1e-4, 2, 3) == found
    assert found.is_tie


def test_a_difference_above_a_tie_is_a_failure() -> None:
    found = compare(plain((1, 2), margin=1.1e-4), SpeculativeDecoding((1, 3), (), 1.0))

    assert found is not None
    assert not found.is_tie


def test_an_answer_that_continues_past_the_end_is_a_failure() -> None:
    found = compare(plain((1, 2), margin=0.0), SpeculativeDecoding((1, 2, 3), (), 1.0))

    assert Difference(2, inf, None, 3) == found
    assert not found.is_tie
