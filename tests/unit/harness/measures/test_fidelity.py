"""Which refusals were needless: those of answers that the route showed whole and no other ids would have shown so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.emulator.oracle_log import OracleEntry
from harness.emulator.survey import SurveyedAnswer
from harness.fixtures.answers import CLOSE, ENCODE, END, FORMAT, PROMPT, PROMPT_IDS, REASONING, WHOLE
from harness.measures.fidelity import needless
from harness.views.roundtrip import RoundTrip, raw_of
from harness.views.view import PROFILES
from pipeline.records import Ids, Reason, Refusal

BODY = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False)
STREAM = replace(BODY, stream=True)
LISTED = replace(BODY, logprobs=True)
CALLS = replace(BODY, tools_sent=True)
STRIPPED = replace(BODY, profile=PROFILES["atlascloud"])
RECOUNTED = replace(STRIPPED, stream=True)
SILENT: Ids = (*REASONING, CLOSE, END)
CUT: Ids = (*REASONING, CLOSE, *ENCODE("Sum: 43 + "))
REPLACED: Ids = (*REASONING, CLOSE, *ENCODE(" \ufffd"), END)


def exchange(ids: Ids, trip: RoundTrip, *, noncanonical: bool = False, earlier: bool = False) -> SurveyedAnswer:
    """An answer of these ids, and the truth of it."""
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = ({"role": "assistant", "content": "", "tool_calls": [call]},) if earlier else ()
    prompt = replace(PROMPT, messages=(*PROMPT.messages, *calling))
    truth = OracleEntry(
        "g", None, trip.profile.name, stream=trip.stream, thinking=True, prompt_ids=PROMPT_IDS, output_ids=ids,
        noncanonical=noncanonical, resegmented=None, cut=ids[-1] != END, cost="0",
    )  # fmt: skip
    return SurveyedAnswer(trip, prompt, raw_of(ids, prompt, PROMPT_IDS, trip, FORMAT), truth, 256)


@pytest.mark.parametrize(
    "reason, trip, ids, expected",
    [
        (Reason.COUNT_MISMATCH, BODY, WHOLE, True),
        (Reason.COUNT_MISMATCH, BODY, (CLOSE, *WHOLE), False),
        (Reason.AMBIGUOUS_LAYOUT, BODY, WHOLE, True),
        (Reason.AMBIGUOUS_LAYOUT, BODY, SILENT, False),
        (Reason.AMBIGUOUS_LAYOUT, LISTED, SILENT, True),
        (Reason.AMBIGUOUS_LAYOUT, STREAM, CUT, False),
        (Reason.AMBIGUOUS_LAYOUT, BODY, CUT, True),
        (Reason.SEAM_LOSSY, BODY, WHOLE, True),
        (Reason.SEAM_LOSSY, STRIPPED, WHOLE, False),
        (Reason.SEAM_LOSSY, replace(STRIPPED, logprobs=True), WHOLE, True),
        (Reason.COUNT_NOT_NATIVE, STRIPPED, WHOLE, True),
        (Reason.COUNT_NOT_NATIVE, RECOUNTED, WHOLE, False),
        (Reason.REPLACEMENT_CHAR, BODY, WHOLE, True),
        (Reason.REPLACEMENT_CHAR, BODY, REPLACED, False),
        (Reason.STRUCTURED_CALLS, CALLS, WHOLE, True),
        (Reason.STRUCTURED_CALLS, replace(CALLS, profile=PROFILES["siliconflow"]), WHOLE, False),
        (Reason.STRUCTURED_CALLS, replace(CALLS, ids=True), WHOLE, True),
    ],
    ids=[
        "provable",
        "outside the layout",
        "nothing else shows so",
        "a hidden token for the tag",
        "logprobs list the tag",
        "half a character held back",
        "half a character shown",
        "white space kept",
        "white space stripped",
        "white space stripped beside logprobs",
        "counted natively",
        "counted from the text",
        "no replacement character",
        "a replacement character",
        "calls kept verbatim",
        "arguments written anew",
        "ids returned",
    ],
)
def test_a_refusal_is_needful_only_where_its_loss_is_there(
    reason: Reason, trip: RoundTrip, ids: Ids, expected: bool
) -> None:
    assert expected == needless(exchange(ids, trip), Refusal(reason, ""), FORMAT)


def test_calls_after_earlier_ones_may_have_been_renumbered() -> None:
    assert not needless(exchange(WHOLE, CALLS, earlier=True), Refusal(Reason.STRUCTURED_CALLS, ""), FORMAT)


def test_no_refusal_of_ids_that_are_not_canonical_is_needless() -> None:
    shown = exchange(WHOLE, BODY, noncanonical=True)

    assert [] == [reason for reason in Reason if needless(shown, Refusal(reason, ""), FORMAT)]
