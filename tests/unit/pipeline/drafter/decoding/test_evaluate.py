"""What an evaluation says: the contract, the numbers, the loops."""

from __future__ import annotations

from math import inf

import pytest

from pipeline.drafter.decoding.evaluate import Difference, Trial, compare
from pipeline.drafter.decoding.prompts import EvaluationPrompt
from pipeline.drafter.decoding.report import ReportError, cells_of, document_of, lossless, require_apart, table_of
from pipeline.drafter.decoding.speculate import PlainDecoding, Round, SpeculativeDecoding
from pipeline.drafter.decoding.trees import parse_shape
from pipeline.records import Ids


def plain(ids: Ids, margin: float = 1.0, seconds: float = 2.0) -> PlainDecoding:
    return PlainDecoding(ids, (margin,) * len(ids), seconds)


def trial(
    name: str, dataset: str, ids: Ids, rounds: tuple[Round, ...], *, margin: float = 1.0, other: Ids | None = None
) -> Trial:
    own, speculated = plain(ids, margin), SpeculativeDecoding(other or ids, rounds, 1.0)
    difference = compare(own, speculated)
    return Trial("drafter", parse_shape("chain:3"), EvaluationPrompt(name, (1,), dataset), own, speculated, difference)


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


def test_an_answer_that_goes_on_where_the_other_ended_is_a_failure() -> None:
    found = compare(plain((1, 2), margin=0.0), SpeculativeDecoding((1, 2, 3), (), 1.0))

    assert Difference(2, inf, None, 3) == found
    assert not found.is_tie


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


def test_looping_answers_are_counted_and_said_and_left_out_of_a_length_of_their_own() -> None:
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
