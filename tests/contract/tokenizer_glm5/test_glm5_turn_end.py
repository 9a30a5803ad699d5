"""Which token ends a turn, measured on answers whose ids are known: on the real GLM-5 vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.emulator.oracle_log import OracleEntry
from harness.emulator.survey import SurveyedAnswer
from harness.emulator.traits import ENOUGH, measured
from harness.fixtures.answers import route
from harness.views.roundtrip import RoundTrip, raw_of
from harness.views.view import PROFILES
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Ids, Prompt, Reason, Refusal, TokenRow

pytestmark = pytest.mark.contract

FORMAT = open_format("glm-5")
ENCODE = FORMAT.tokenizer.encode
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
RETURNED = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False, ids=True)
USER, OBSERVATION, END_OF_TEXT = 154827, 154829, 154820
THOUGHT: Ids = (*ENCODE("So.\n"), 154842)
SAID: Ids = (*THOUGHT, *ENCODE("\nYes."))
CALLED: Ids = (*THOUGHT, 154843, *ENCODE("f"), 154844)


def exchange(ids: Ids, trip: RoundTrip = RETURNED) -> SurveyedAnswer:
    """A finished answer of these ids."""
    prompt_ids = FORMAT.render(PROMPT)
    raw = raw_of(ids, PROMPT, prompt_ids, trip, FORMAT)
    truth = OracleEntry(
        "g", None, "Chutes", stream=False, thinking=True, prompt_ids=prompt_ids, output_ids=ids, noncanonical=False,
        resegmented=None, cut=False, cost="0",
    )  # fmt: skip
    return SurveyedAnswer(trip, PROMPT, raw.replace(b'": "length"', b'": "stop"'), truth, 256)


def turn_end(said: int, called: int, *others: Ids) -> Trait:
    """What is measured on so many answers without and with calls, ended as the layout says, and on others."""
    answers = [(*SAID, USER)] * said + [(*CALLED, OBSERVATION)] * called + list(others)
    return measured([exchange(ids) for ids in answers], FORMAT)[0].traits[TraitName.TURN_END]


def ordinary(trait: Trait) -> Fingerprint:
    """A route of which all else is known."""
    known = route()
    return replace(known, traits={**known.traits, TraitName.TURN_END: trait})


def test_enough_answers_of_both_kinds_prove_the_turns_end() -> None:
    """They prove that the next role ends a turn."""
    assert Trait("by_role", 2 * ENOUGH, proven=True) == turn_end(ENOUGH, ENOUGH)


@pytest.mark.parametrize("said, called", [(2 * ENOUGH, 0), (0, 2 * ENOUGH), (2 * ENOUGH, ENOUGH - 1)])
def test_answers_of_one_kind_prove_nothing_of_the_other(said: int, called: int) -> None:
    assert Trait("by_role", said + called, proven=False) == turn_end(said, called)


@pytest.mark.parametrize(
    "other",
    [(*SAID, END_OF_TEXT), (*SAID, OBSERVATION), (*CALLED, USER), (*CALLED, END_OF_TEXT)],
    ids=["text ends the document", "text ends as calls do", "calls end as text does", "calls end the document"],
)
def test_one_answer_that_ends_otherwise_unproves_it(other: Ids) -> None:
    assert Trait("by_role", 2 * ENOUGH + 1, proven=False) == turn_end(ENOUGH, ENOUGH, other)


def test_a_route_that_always_ends_the_document_is_refused() -> None:
    """It is a known trait."""
    ended = [(*SAID, END_OF_TEXT)] * ENOUGH + [(*CALLED, END_OF_TEXT)] * ENOUGH
    trait = turn_end(0, 0, *ended)

    assert Trait("<|endoftext|>", 2 * ENOUGH, proven=True) == trait
    assert Reason.AMBIGUOUS_LAYOUT is refusal(of(exchange((*SAID, USER), TEXT), ordinary(trait)))


TEXT = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False)


def of(one: SurveyedAnswer, known: Fingerprint) -> TokenRow | Refusal:
    completion = one.completion
    return reconstruct(PROMPT, completion, FORMAT, known) if isinstance(completion, Completion) else completion.refusal


def refusal(row: TokenRow | Refusal) -> Reason | None:
    return row.reason if isinstance(row, Refusal) else None


@pytest.mark.parametrize("ids", [(*SAID, USER), (*CALLED, OBSERVATION)], ids=["text", "calls"])
def test_text_alone_is_rebuilt_once_the_route_is_proven(ids: Ids) -> None:
    """It is refused before."""
    rows = [of(exchange(ids, TEXT), ordinary(turn_end(ENOUGH, called))) for called in (ENOUGH, 0)]

    assert [ids, None] == [row.output_ids if isinstance(row, TokenRow) else None for row in rows]
    assert Reason.ROUTE_UNPROVEN is refusal(rows[1])
