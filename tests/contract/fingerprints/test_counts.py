"""What counts say of a route, held against the view that made them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from harness.fixtures.exchanges import (
    FORMAT,
    PLAIN,
    TOKENIZER,
    UNCOUNTED,
    Told,
    call_ids,
    cut_line,
    learned,
    line,
    shown,
    split_one,
    text_ids,
    thought_ids,
    with_count,
    words,
)
from harness.views.resplit import resplit
from pipeline.formats.format import Parts
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json

pytestmark = pytest.mark.contract

# Control tokens in the count


@pytest.mark.parametrize("counted", [True, False])
def test_the_end_tokens_of_texts_and_of_calls_are_learned_apart(*, counted: bool) -> None:
    profile = replace(PLAIN, end_counted=counted)
    lines = [line(n, text_ids(n), profile) for n in range(20)]
    lines += [line(n, call_ids(n, '{"a": 1}'), replace(profile, end_counted=True), tools=True) for n in range(20, 45)]
    found = learned(lines)

    assert (counted, 20, True) == shown(found.traits[TraitName.END_COUNTED])
    assert (True, 25, True) == shown(found.traits[TraitName.END_COUNTED_TOOLS])


def test_ids_without_their_prefix_are_restored_for_the_count() -> None:
    profile = replace(UNCOUNTED, tool_ids="prefix_cut")
    found = learned(line(n, call_ids(n, "{}"), profile, tools=True) for n in range(25))

    assert (False, 25, True) == shown(found.traits[TraitName.END_COUNTED_TOOLS])
    assert ("prefix_cut", 25, True) == shown(found.traits[TraitName.TOOL_IDS])


def test_a_counted_think_close_is_learned_beside_the_end_token() -> None:
    lines = [line(n, text_ids(n), UNCOUNTED) for n in range(20)]
    lines += [line(n, thought_ids(words(n), words(n + 1)), UNCOUNTED, thinking=True) for n in range(20, 45)]
    found = learned(lines)

    assert (False, 20, True) == shown(found.traits[TraitName.END_COUNTED])
    assert (True, 25, True) == shown(found.traits[TraitName.THINK_CLOSE_COUNTED])


def test_thinking_answers_prove_nothing_unless_some_were_cut() -> None:
    """Two hidden tokens may be `</think>` and the end token, or one of them and a line feed that is always stripped."""
    thinking = [line(n, thought_ids(words(n), words(n + 1)), thinking=True) for n in range(25)]
    cut = [cut_after_thinking(n) for n in range(25, 28)]
    names = (TraitName.END_COUNTED, TraitName.THINK_CLOSE_COUNTED)
    alone, cut_too, short = (
        learned(lines) for lines in (thinking, [*thinking, *cut], [with_count(one, -1) for one in thinking])
    )

    assert [(True, 25, False), (True, 25, False)] == [shown(alone.traits[name]) for name in names]
    assert ("0 of 3 answers that were cut after </think>",) == alone.traits[TraitName.END_COUNTED].lacks
    assert [(True, 25, True), (True, 28, True)] == [shown(cut_too.traits[name]) for name in names]
    assert [(None, 0, False)] * 2 == [shown(short.traits[name]) for name in names]


def cut_after_thinking(number: int) -> dict[str, Json]:
    ids = FORMAT.assemble(Parts(words(number), think_closed=True, body=(words(number + 1),), ended=False)).ids
    return line(number, ids, thinking=True, told=Told(max_tokens=len(ids)))


def test_thinking_that_was_cut_shows_in_which_field_it_stands() -> None:
    lines = []
    for n in range(25):
        ids = tuple(TOKENIZER.encode(words(n, least=4)))
        lines.append(line(n, ids, thinking=True, told=Told(max_tokens=len(ids))))
    found = learned(lines)

    assert ("reasoning", 25, True) == shown(found.traits[TraitName.UNCLOSED])


# Native counts


def test_an_equality_that_a_recount_would_give_is_no_evidence() -> None:
    """The end token is not counted: every count is the text's own, whoever counted it."""
    trait = learned(line(n, text_ids(n), UNCOUNTED) for n in range(60)).traits[TraitName.COUNT_NATIVE]

    assert (None, 0, False) == shown(trait)
    assert () == trait.against


def test_counted_control_tokens_prove_a_native_count() -> None:
    lines = [line(n, text_ids(n)) for n in range(25)]
    lines += [line(n, thought_ids(words(n), words(n + 1)), thinking=True) for n in range(25, 50)]
    lines += [cut_after_thinking(n) for n in range(50, 60)]
    trait = learned(lines).traits[TraitName.COUNT_NATIVE]

    assert (True, 60, True) == shown(trait)


def test_a_cut_answer_counted_as_text_and_hidden_is_a_recount() -> None:
    """Its limit is a token more: another tokenisation was sampled, and the text was encoded again."""
    lines = [line(n, text_ids(n)) for n in range(25)]
    lines += [line(n, thought_ids(words(n), words(n + 1)), thinking=True) for n in range(25, 50)]
    ids = split_one(FORMAT.assemble(Parts(words(50), think_closed=True, body=(words(51),), ended=False)).ids)
    lines.append(with_count(line(50, ids, thinking=True, told=Told(max_tokens=len(ids))), -1))
    trait = learned(lines).traits[TraitName.COUNT_NATIVE]

    assert (False, 1, False) == shown(trait)


def test_cut_answers_prove_it_where_three_texts_count_otherwise() -> None:
    plain = [cut_line(n, tuple(TOKENIZER.encode(words(n, least=4)))) for n in range(25)]
    other = [cut_line(n, split_one(tuple(TOKENIZER.encode(words(n, least=9))))) for n in range(25, 28)]
    few, enough = (learned([*plain, *more]).traits[TraitName.COUNT_NATIVE] for more in (other[:2], other))

    assert (True, 27, False) == shown(few)
    assert ("2 of 3 answers would have another count if their text were encoded again",) == few.lacks
    assert (True, 28, True) == shown(enough)


def test_a_cut_answer_whose_count_is_its_texts_shows_a_recount() -> None:
    lines = [line(n, text_ids(n)) for n in range(25)]
    odd = cut_line(25, split_one(tuple(TOKENIZER.encode(words(25, least=9)))))
    lines.append(with_count(odd, -1))
    trait = learned(lines).traits[TraitName.COUNT_NATIVE]

    assert (False, 1, False) == shown(trait)


@pytest.mark.parametrize("recounted, expected", [(0, (True, 45, True)), (-1, (False, 5, False))])
def test_another_tokenisation_moves_only_a_native_count(recounted: int, expected: tuple[Json, int, bool]) -> None:
    lines = [line(n, text_ids(n), stream=True) for n in range(40)]
    lines += [with_count(line(n, split_one(text_ids(n)), stream=True), recounted) for n in range(40, 45)]
    found = learned(lines)

    assert expected == shown(found.traits[TraitName.COUNT_NATIVE])
    assert (True, 40, True) == shown(found.traits[TraitName.END_COUNTED])


# Other tokenisations of the same length


def test_other_tokens_of_the_same_number_are_measured() -> None:
    """One in 25 is wrong; Clopper and Pearson's one-sided bound at 95 % of that is 17.6121 %."""
    lines = [line(n, text_ids(n, words(n, least=9)), stream=True) for n in range(25)]
    other = resplit(TOKENIZER, text_ids(3, words(3, least=9)), Random(7), same_count=True)
    assert other is not None
    lines[3] = line(3, other, stream=True)
    trait = learned(lines).traits[TraitName.SAME_COUNT_MISMATCH]

    assert ({"wrong": 1, "n": 25, "upper95": 0.176121}, 25, True) == shown(trait)
    assert [lines[3]["id"]] == [one.id for one in trait.against]


# What is no evidence


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"stop": ["rain"]}, "a stop text was asked for, and what it cut off was counted or not"),
        ({"tool_choice": "required"}, "its call was forced, and forced tokens are counted or not"),
    ],
    ids=str,
)
def test_an_answer_that_was_forced_has_no_say_in_counts(changes: dict[str, Json], why: str) -> None:
    lines = [line(n, call_ids(n, "{}"), tools=True) for n in range(25)]
    request: Any = lines[0]["request"]
    lines[0] = {**lines[0], "request": {**request, **changes}}
    trait = learned(lines).traits[TraitName.END_COUNTED_TOOLS]

    assert (True, 24, True) == shown(trait)
    assert [why] == [one.why for one in trait.against]


def test_an_answer_that_may_have_thought_has_no_vote_on_counts() -> None:
    """Its thinking may be empty or left out: nothing says which tokens are counted beside its text."""
    lines = [line(n, text_ids(n)) for n in range(25)]
    request: Any = lines[0]["request"]
    lines[0] = {**lines[0], "request": {**request, "reasoning": {"enabled": True}}}
    trait = learned(lines).traits[TraitName.END_COUNTED]

    assert (True, 24, True) == shown(trait)
    assert TraitName.THINK_CLOSE_COUNTED not in learned(lines).traits
