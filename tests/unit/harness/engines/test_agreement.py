"""Where two engines' greedy answers part, and whether rounding explains it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines.agreement import Difference, asks, compared, first_difference, furthest
from harness.goldens.engine_sets import GoldenSet, GoldenSetError, Verdict, compare, prompts_sha256, read, write
from pipeline.generation.engines.output import EngineOutput
from pipeline.records import Json

INFINITE = float("inf")


def said(*tokens: tuple[int, float, float]) -> EngineOutput:
    """Tokens with their logprob and their runner-up's."""
    ids = tuple(token for token, _, _ in tokens)
    others = tuple((token + 1, other) for token, _, other in tokens)
    return EngineOutput(ids, tuple(own for _, own, _ in tokens), others, finished=True)


def test_equal_answers_do_not_part() -> None:
    one = said((5, -0.1, -3.0), (6, -0.2, -2.0))

    assert first_difference(0, one, one) is None


def test_a_near_tie_is_told_with_both_margins() -> None:
    ours = said((5, -0.1, -3.0), (6, -0.693, -0.694), (9, -0.1, -4.0))
    theirs = said((5, -0.1, -3.0), (7, -0.693, -0.6935))
    found = first_difference(3, ours, theirs)

    assert found is not None
    assert (3, 1, 6, 7, True) == (found.prompt, found.at, found.ours, found.theirs, found.is_near)
    assert [0.001, 0.0005] == [round(found.our_margin, 6), round(found.their_margin, 6)]


def test_a_wide_margin_on_either_side_is_no_rounding() -> None:
    assert not Difference(0, 0, 5, 6, our_margin=0.0, their_margin=0.5).is_near


def test_an_answer_that_ends_early_parts_where_it_ends() -> None:
    found = first_difference(0, said((5, -0.1, -3.0), (6, -0.1, -3.0)), said((5, -0.1, -3.0)))

    assert found is not None
    assert (1, 6, None, INFINITE, False) == (found.at, found.ours, found.theirs, found.their_margin, found.is_near)


def test_logprobs_are_compared_as_far_as_the_text_is_one() -> None:
    ours = said((5, -0.1, -3.0), (6, -0.7, -0.7), (9, -0.1, -4.0))
    theirs = said((5, -0.1002, -3.0), (7, -0.7, -0.7), (9, -5.0, -4.0))

    assert 0.0002 == round(furthest([ours], [theirs]), 6)
    assert (1, 0, 1, 0) == tuple(compared([ours], [theirs])[name] for name in ("prompts", "equal", "near", "wide"))


def test_prompts_are_the_same_each_time() -> None:
    """They end with the format's end token."""
    first, second = asks(12, 40), asks(12, 40)

    assert first == second
    assert {0.0} == {each.sampling.temperature for each in first}
    assert 12 == len({each.prompt for each in first})


# Golden sets


KEY: dict[str, Json] = {"engine": "sglang", "version": "0.5.23", "rows": 8}
WAS = said((5, -0.1, -3.0), (6, -0.693, -0.694))
NEAR_TIE = said((5, -0.1, -3.0), (7, -0.693, -0.694))
WIDE = said((9, -0.1, -3.0))


@pytest.mark.parametrize(
    "changes, answer, verdict",
    [
        ({}, WAS, Verdict.SAME),
        ({}, NEAR_TIE, Verdict.CHANGED),
        ({"version": "0.5.24"}, WAS, Verdict.SAME),
        ({"version": "0.5.24"}, NEAR_TIE, Verdict.DRIFT),
        ({"rows": 1}, NEAR_TIE, Verdict.DRIFT),
        ({"version": "0.5.24"}, WIDE, Verdict.CHANGED),
    ],
    ids=["equal", "same key", "newer", "newer, near", "other batch, near", "newer, wide"],
)
def test_rounding_excuses_another_key_and_never_the_same(
    changes: dict[str, Json], answer: EngineOutput, verdict: Verdict
) -> None:
    found = compare(GoldenSet(KEY, "p", (WAS,)), GoldenSet({**KEY, **changes}, "p", (answer,)))

    assert (verdict, tuple(changes)) == (found.verdict, found.moved)


def test_a_set_of_other_prompts_is_not_compared() -> None:
    with pytest.raises(GoldenSetError, match="other prompts"):
        compare(GoldenSet(KEY, "p", (WAS,)), GoldenSet(KEY, "q", (WAS,)))


def test_a_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    golden = GoldenSet(KEY, prompts_sha256(asks(2, 8)), (WAS, WIDE))
    write(tmp_path / "new" / "set.jsonl", golden)

    assert golden == read(tmp_path / "new" / "set.jsonl")


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text('{"key": {}}\n')

    with pytest.raises(GoldenSetError, match="no golden set"):
        read(tmp_path / "set.jsonl")
