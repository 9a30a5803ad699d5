"""What GLM-4.5 writes before its `<think>`, measured on answers whose ids are known: on its real vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.emulator.oracle_log import OracleEntry
from harness.emulator.survey import SurveyedAnswer
from harness.emulator.traits import ENOUGH, measured
from harness.fixtures.answers import route
from harness.views.roundtrip import RoundTrip, raw_of, read
from harness.views.view import PROFILES
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Ids, Prompt, TokenRow

pytestmark = pytest.mark.contract

FORMAT = open_format("glm-4.5")
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
RETURNED = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False, ids=True)
TEXT = replace(RETURNED, ids=False)
AFTER: Ids = (151350, 4416, 13, 151351, 198, 9450, 13, 151336)
WRITTEN: Ids = (198, *AFTER)


def exchange(ids: Ids) -> SurveyedAnswer:
    """A finished answer of these ids."""
    prompt_ids = FORMAT.render(PROMPT)
    truth = OracleEntry(
        "g", None, "Chutes", stream=False, thinking=True, prompt_ids=prompt_ids, output_ids=ids, noncanonical=False,
        resegmented=None, cut=False, cost="0",
    )  # fmt: skip
    return SurveyedAnswer(RETURNED, PROMPT, raw_of(ids, PROMPT, prompt_ids, RETURNED, FORMAT), truth, 256)


def lead(*answers: Ids) -> Trait:
    return measured([exchange(ids) for ids in answers], FORMAT)[0].traits[TraitName.THINK_LEAD]


def test_enough_answers_that_begin_with_the_line_feed_prove_it() -> None:
    """They prove an answer too."""
    trait = lead(*[WRITTEN] * ENOUGH)
    known = route({TraitName.TURN_END: "by_role"})
    known = replace(known, provider="Chutes", traits={**known.traits, TraitName.THINK_LEAD: trait})
    completion = read(raw_of(WRITTEN, PROMPT, FORMAT.render(PROMPT), TEXT, FORMAT), stream=False)
    row = reconstruct(PROMPT, completion, FORMAT, known)

    assert Trait("written", ENOUGH, proven=True) == trait
    assert isinstance(row, TokenRow)
    assert WRITTEN == row.output_ids


def test_answers_without_thinking_say_nothing_of_it() -> None:
    assert Trait("written", 1, proven=False) == lead(*[WRITTEN[5:]] * ENOUGH, WRITTEN)


@pytest.mark.parametrize("other", [AFTER, (271, *AFTER)], ids=["nothing", "two line feeds"])
def test_one_answer_that_begins_otherwise_unproves_it(other: Ids) -> None:
    assert Trait("written", ENOUGH + 1, proven=False) == lead(*[WRITTEN] * ENOUGH, other)
