"""The report: numbers, losslessness, loops."""

from __future__ import annotations

import pytest

from harness.fixtures.small_drafters import trial
from pipeline.drafter.decoding.report import (
    ReportError,
    cells_of,
    distinct_4grams,
    document_of,
    loop_length,
    lossless,
    require_apart,
    table_of,
)
from pipeline.drafter.decoding.speculate import Round


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


TRIALS = [
    trial("a", "gsm8k", tuple(range(9)), (Round(3, 3, 4), Round(0, 3, 1), Round(2, 3, 3))),
    trial("b", "gsm8k", tuple(range(5)), (Round(1, 3, 2), Round(1, 1, 1))),
    trial("c", "mt_bench", (*range(4), *[7] * 40), (Round(3, 3, 4),)),
]


def test_numbers_of_a_set_are_over_its_rounds_together() -> None:
    """11 tokens in 5 rounds; position 1 was accepted in 4 of them, 2 in 2, 3 in 1; the last draft ended at 1."""
    found = cells_of(TRIALS)[0].document()

    assert ("gsm8k", "drafter", "chain:3", 2, 14, 5) == tuple(
        found[key] for key in ("set", "drafter", "shape", "prompts", "tokens", "rounds")
    )
    assert 11 / 5 == found["acceptance_length"]
    assert [4 / 5, 2 / 5, 1 / 5] == found["acceptance"]
    assert [4 / 5, 2 / 3, 1 / 2] == found["acceptance_given_the_one_before"]
    assert (7.0, 3.5, 2.0) == (found["tokens_a_second"], found["plain_tokens_a_second"], found["speedup"])


def test_several_sets_have_a_line_for_all_of_them() -> None:
    found = [(cell.dataset, len(cell.trials)) for cell in cells_of(TRIALS)]

    assert [("gsm8k", 2), ("mt_bench", 1), ("all", 3)] == found


@pytest.mark.parametrize(
    "sets, contenders, shapes, said",
    [
        (["gsm8k", "all"], ["d"], ["chain:3"], "a set of prompts is named 'all', .* Rename its file, or its `dataset`"),
        (["s"], ["bigram", "bigram"], ["chain:3"], "two drafters would be reported as 'bigram': .* Rename the folder"),
        (["s"], ["d"], ["chain:3", "tree:2", "chain:3"], "--shape chain:3 is given twice. Give each shape once"),
    ],
)
def test_two_lines_of_one_name_are_refused(
    sets: list[str], contenders: list[str], shapes: list[str], said: str
) -> None:
    with pytest.raises(ReportError, match=said):
        require_apart(sets, contenders, shapes)


@pytest.mark.parametrize("sets", [["all", "all"], ["gsm8k", "mt_bench", "gsm8k"]])
def test_names_that_stand_apart_are_taken(sets: list[str]) -> None:
    """One set alone has no line for all of them beside it."""
    require_apart(sets, ["drafter", "untrained, seed 1", "bigram"], ["chain:3", "tree:3"])


def test_loops_are_counted_and_left_out_of_a_second_length() -> None:
    """Acceptance 15 in 6 rounds with the loop, 11 in 5 without."""
    found = cells_of(TRIALS)[2].document()

    assert (1, 15 / 6, 11 / 5) == tuple(
        found[key] for key in ("looping_answers", "acceptance_length", "acceptance_length_without_loops")
    )
    assert any("1 of 1 answers of mt_bench end in a loop" in line for line in table_of(TRIALS))


def test_the_contract_counts_and_lists_what_differs() -> None:
    tie = trial("t", "s", (1, 2), (Round(0, 3, 1),), margin=5e-5, other=(1, 3))
    wrong = trial("w", "s", (1, 2), (Round(0, 3, 1),), margin=0.5, other=(4, 2))

    found = lossless([*TRIALS, tie, wrong])

    assert (5, 5, 2) == (found["answers"], found["prompts"], found["differing"])
    common = {"set": "s", "drafter": "drafter", "shape": "chain:3"}
    assert [{**common, "id": "t", "token": 1, "margin": 5e-5, "plain": 2, "speculated": 3}] == found["ties"]
    assert [{**common, "id": "w", "token": 0, "margin": 0.5, "plain": 1, "speculated": 4}] == found["failures"]
    assert any(line.startswith("  FAILURE: set s, id w") for line in table_of([wrong]))


def test_nothing_measured_is_none_and_no_crash() -> None:
    """An answer of one token has no round."""
    found = document_of([trial("a", "s", (2,), ())])["sets"]

    assert isinstance(found, list)
    assert (None, []) == (found[0]["acceptance_length"], found[0]["acceptance"])  # type: ignore[index,call-overload]
    assert 3 == len(list(table_of([trial("a", "s", (2,), ())])))


def test_margins_of_an_ended_answer_are_words_in_json() -> None:
    ended = trial("e", "s", (1,), (Round(0, 3, 1),), other=(1, 2))

    found = lossless([ended])["failures"]

    assert isinstance(found, list)
    assert isinstance(found[0], dict)
    assert ("an answer ended", None, 2) == (found[0]["margin"], found[0]["plain"], found[0]["speculated"])


def test_diversity_is_of_the_plain_answers() -> None:
    assert cells_of(TRIALS)[0].document()["distinct_4grams"] == pytest.approx(6 / 8)
