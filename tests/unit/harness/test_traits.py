"""What a route's counts say of the think tokens, measured on answers whose ids are known."""

from __future__ import annotations

import json

import pytest

from harness.emulator.oracle import OracleEntry
from harness.ordinary import FORMAT, PROMPT
from harness.roundtrips import Trip, raw_of
from harness.survey import Exchange
from harness.traits import ENOUGH, measured
from harness.views import PROFILES
from pipeline.formats.kimi import KimiFormat
from pipeline.formats.kimi_variants import K2_THINKING
from pipeline.formats.parts import Parts
from pipeline.routes import Trait, TraitName

FMT = KimiFormat("k2-thinking", FORMAT.tokenizer, None, K2_THINKING)
TRIP = Trip(PROFILES["chutes"], stream=False, tools_sent=False)
INSTANT = Parts(None, think_closed=False, body=(" Yes.",), ended=True)
THOUGHT = Parts("So it is.", think_closed=True, body=(" Yes.",), ended=True)


def exchange(parts: Parts, uncounted: int) -> Exchange:
    """An answer of a route whose count lacks `uncounted` of its tokens."""
    prompt_ids, ids = FMT.render(PROMPT), FMT.assemble(parts).ids
    body = json.loads(raw_of(ids, PROMPT, prompt_ids, TRIP, FMT))
    body["usage"]["completion_tokens"] -= uncounted
    truth = OracleEntry(
        "g", None, "Chutes", stream=False, thinking=True, prompt_ids=prompt_ids, output_ids=ids, noncanonical=False,
        resegmented=None, cut=False, cost="0",
    )  # fmt: skip
    return Exchange(TRIP, PROMPT, json.dumps(body).encode(), truth, 256)


@pytest.mark.parametrize("uncounted, counted", [(0, True), (2, False)])
def test_the_tag_that_the_model_emits_is_counted_as_the_closing_one_is(uncounted: int, counted: bool) -> None:
    answers = [exchange(INSTANT, 0)] * ENOUGH + [exchange(THOUGHT, uncounted)] * ENOUGH
    found = measured(answers, FMT)[0].traits

    assert Trait(True, ENOUGH, proven=True) == found[TraitName.END_COUNTED]  # noqa: FBT003 — the trait's value
    assert Trait(counted, ENOUGH, proven=True) == found[TraitName.THINK_CLOSE_COUNTED]


def test_a_route_that_counts_one_of_the_two_is_neither() -> None:
    answers = [exchange(INSTANT, 0)] * ENOUGH + [exchange(THOUGHT, 1)] * ENOUGH

    assert measured(answers, FMT)[0].traits[TraitName.THINK_CLOSE_COUNTED].value == "1 tokens are not counted"
