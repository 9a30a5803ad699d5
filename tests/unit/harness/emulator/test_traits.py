"""What a route's counts say of the think tokens, measured on answers whose ids are known."""

from __future__ import annotations

import json
import re

import pytest

from harness.emulator.oracle_log import OracleEntry
from harness.emulator.survey import SurveyedAnswer
from harness.emulator.traits import ENOUGH, measured
from harness.fixtures.answers import FORMAT, PROMPT
from harness.views.roundtrip import RoundTrip, raw_of
from harness.views.view import PROFILES
from pipeline.formats.format import Parts
from pipeline.formats.kimi.format import KimiFormat
from pipeline.formats.kimi.releases import K2_THINKING
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Prompt

FMT = KimiFormat("k2-thinking", FORMAT.tokenizer, None, K2_THINKING)
TRIP = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False)
INSTANT = Parts(None, think_closed=False, body=(" Yes.",), ended=True)
THOUGHT = Parts("So it is.", think_closed=True, body=(" Yes.",), ended=True)


def exchange(parts: Parts, uncounted: int) -> SurveyedAnswer:
    """An answer of a route whose count lacks `uncounted` of its tokens."""
    prompt_ids, ids = FMT.render(PROMPT), FMT.assemble(parts).ids
    body = json.loads(raw_of(ids, PROMPT, prompt_ids, TRIP, FMT))
    body["usage"]["completion_tokens"] -= uncounted
    truth = OracleEntry(
        "g", None, "Chutes", stream=False, thinking=True, prompt_ids=prompt_ids, output_ids=ids, noncanonical=False,
        resegmented=None, cut=False, cost="0",
    )  # fmt: skip
    return SurveyedAnswer(TRIP, PROMPT, json.dumps(body).encode(), truth, 256)


@pytest.mark.parametrize("uncounted, counted", [(0, True), (2, False)])
def test_the_opening_tag_is_counted_as_the_closing_one(uncounted: int, counted: bool) -> None:
    """The tag that the model emits is counted as the closing one is."""
    answers = [exchange(INSTANT, 0)] * ENOUGH + [exchange(THOUGHT, uncounted)] * ENOUGH
    found = measured(answers, FMT)[0].traits

    assert Trait(True, ENOUGH, proven=True) == found[TraitName.END_COUNTED]  # noqa: FBT003 — the trait's value
    assert Trait(counted, ENOUGH, proven=True) == found[TraitName.THINK_CLOSE_COUNTED]


def test_a_route_that_counts_one_of_the_two_is_neither() -> None:
    answers = [exchange(INSTANT, 0)] * ENOUGH + [exchange(THOUGHT, 1)] * ENOUGH

    assert measured(answers, FMT)[0].traits[TraitName.THINK_CLOSE_COUNTED].value == "1 tokens are not counted"


CALL = "<|tool_call_begin|>functions.f:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"


def with_section(number: int, shown: dict[str, object], *, tools_sent: bool) -> SurveyedAnswer:
    """An instant answer `Wait.` with one call of this number, shown so by a route that keeps its count."""
    text = f"Wait.<|tool_calls_section_begin|>{CALL.format(number)}<|tool_calls_section_end|>"
    prompt = Prompt("r", PROMPT.messages, (), thinking=False)
    body = tuple(FORMAT.tool_markers().get(piece, piece) for piece in re.split(r"(<\|[a-z_]+\|>)", text) if piece)
    ids, prompt_ids = FORMAT.assemble(Parts(None, think_closed=False, body=body, ended=True)).ids, FORMAT.render(prompt)
    trip = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=tools_sent)
    answer = json.loads(raw_of(ids, prompt, prompt_ids, trip, FORMAT))
    answer["choices"][0]["message"] = {"role": "assistant", **shown}
    truth = OracleEntry(
        "g", None, "Chutes", stream=False, thinking=False, prompt_ids=prompt_ids, output_ids=ids, noncanonical=False,
        resegmented=None, cut=False, cost="0",
    )  # fmt: skip
    return SurveyedAnswer(trip, prompt, json.dumps(answer).encode(), truth, 256)


def called(identity: str) -> dict[str, object]:
    return {"content": "Wait.", "tool_calls": [{"id": identity, "function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    "number, identity, value",
    [(0, "functions.f:0", "verbatim"), (3, "functions.f:0", "renumbered"), (0, "f:0", "prefix_cut"),
     (0, "call_1", "invented")],
)  # fmt: skip
def test_a_call_that_has_the_number_of_its_place_was_named_anew(number: int, identity: str, value: str) -> None:
    seen = [with_section(number, called(identity), tools_sent=True)] * ENOUGH

    assert Trait(value, ENOUGH, proven=True) == measured(seen, FORMAT)[0].traits[TraitName.TOOL_IDS]


def test_one_call_that_was_named_anew_is_enough() -> None:
    seen = [with_section(0, called("functions.f:0"), tools_sent=True)] * ENOUGH
    seen.append(with_section(3, called("functions.f:0"), tools_sent=True))

    assert "renumbered" == measured(seen, FORMAT)[0].traits[TraitName.TOOL_IDS].value


@pytest.mark.parametrize(
    "shown, value",
    [({"content": "Wait."}, "dropped"), ({"content": "Wait.functions.f:0{}"}, "stripped"),
     (called("functions.f:0"), "parsed"), ({"content": f"Wait.<|tool_calls_section_begin|>{CALL.format(0)}"}, "raw")],
)  # fmt: skip
def test_a_section_without_sent_tools_votes_on_markers(shown: dict[str, object], value: str) -> None:
    """What a route does to a section that nobody sent tools for."""
    seen = [with_section(0, shown, tools_sent=False)] * ENOUGH

    assert Trait(value, ENOUGH, proven=True) == measured(seen, FORMAT)[0].traits[TraitName.MARKERS]


@pytest.mark.parametrize(
    "reasoning, content, value",
    [("\nSo.\n", "\nYes.\n", "kept"), ("\nSo.", "\nYes.\n", "stripped"), ("So.", "Yes.", "stripped"),
     ("\n\nSo.\n", "\nYes.\n", "added")],
)  # fmt: skip
def test_white_space_lost_at_one_end_counts_as_stripped(reasoning: str, content: str, value: str) -> None:
    """White space that is lost at one end of one field is stripped."""
    ids = FORMAT.assemble(Parts("\nSo.\n", think_closed=True, body=("\nYes.\n",), ended=True)).ids
    prompt_ids = FORMAT.render(PROMPT)
    answer = json.loads(raw_of(ids, PROMPT, prompt_ids, TRIP, FORMAT))
    answer["choices"][0]["message"] = {"role": "assistant", "content": content, "reasoning": reasoning}
    truth = OracleEntry(
        "g", None, "Chutes", stream=False, thinking=True, prompt_ids=prompt_ids, output_ids=ids, noncanonical=False,
        resegmented=None, cut=False, cost="0",
    )  # fmt: skip
    seen = [SurveyedAnswer(TRIP, PROMPT, json.dumps(answer).encode(), truth, 256)] * ENOUGH

    assert value == measured(seen, FORMAT)[0].traits[TraitName.SEAM].value
