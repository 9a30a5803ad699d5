"""Parsed calls beside the section that returned ids hold."""

from __future__ import annotations

import pytest

from harness.fixtures.answers import CLOSE, ENCODE, END, FORMAT, PROMPT, answer, counts, route
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Reason, Refusal, TokenRow, ToolCall


def with_call(emitted: str, shown: str) -> TokenRow | Refusal:
    """What is made of returned ids with one call whose arguments were emitted, and shown, so."""
    mark = FORMAT.tool_markers()
    begin, stop, call, argument, end = (mark[f"<|tool_{name}|>"] for name in NAMES)
    section = (begin, call, *ENCODE("functions.f:0"), argument, *ENCODE(emitted), end, stop)
    ids = (*ENCODE("So it is."), CLOSE, *section, END)
    completion = answer(
        content=None,
        finish_reason="tool_calls",
        tool_calls=(ToolCall("functions.f:0", "f", shown),),
        token_ids=ids,
        usage=counts(len(ids)),
    )
    return reconstruct(PROMPT, completion, FORMAT, route({TraitName.TOOL_ARGUMENTS: "reserialised"}))


NAMES = ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")


@pytest.mark.parametrize(
    "emitted, shown", [('{"a": 1}', '{"a":1}'), ("NaN", "NaN"), ('{"a": -Infinity}', '{"a":-Infinity}')]
)
def test_arguments_written_anew_are_the_same_also_where_they_hold_what_is_no_json_number(
    emitted: str, shown: str
) -> None:
    assert isinstance(with_call(emitted, shown), TokenRow)


@pytest.mark.parametrize("emitted, shown", [('{"a": 1}', '{"a":2}'), ("NaN", "Infinity"), ("{", "}")])
def test_other_arguments_contradict_the_ids(emitted: str, shown: str) -> None:
    row = with_call(emitted, shown)

    assert isinstance(row, Refusal)
    assert Reason.IDS_CONTRADICT is row.reason


def dropped(*, before: str, shown: str, after: str = "", **changes: object) -> TokenRow | Refusal:
    """What is made of returned ids with a section that is in no field of the answer."""
    mark = FORMAT.tool_markers()
    begin, stop, call, argument, end = (mark[f"<|tool_{name}|>"] for name in NAMES)
    section = (begin, call, *ENCODE("functions.f:0"), argument, *ENCODE("{}"), end, stop)
    ids = (*ENCODE("So it is."), CLOSE, *ENCODE(before), *section, *ENCODE(after), END)
    completion = answer(content=shown, token_ids=ids, usage=counts(len(ids)), **changes)
    return reconstruct(PROMPT, completion, FORMAT, None)


@pytest.mark.parametrize("shown", ["Wait.", "Wait.Done."])
def test_a_section_that_a_parser_left_out_is_no_contradiction(shown: str) -> None:
    assert isinstance(dropped(before="Wait.", after="Done.", shown=shown), TokenRow)


@pytest.mark.parametrize("shown", ["Wait", "Wait.Don", "Done.", ""])
def test_text_that_was_left_out_beside_the_section_is_one(shown: str) -> None:
    row = dropped(before="Wait.", after="Done.", shown=shown)

    assert isinstance(row, Refusal)
    assert Reason.IDS_CONTRADICT is row.reason


def test_the_text_after_a_section_may_stand_beside_the_calls() -> None:
    """SGLang streams it as content."""
    calls = (ToolCall("functions.f:0", "f", "{}"),)
    shown = {"finish_reason": "tool_calls", "tool_calls": calls}

    assert isinstance(dropped(before="Wait.", after="Done.", shown="Wait.Done.", **shown), TokenRow)
    assert isinstance(dropped(before="Wait.", after="Done.", shown="Wait.", **shown), TokenRow)


@pytest.mark.parametrize("shown, taken", [("", True), ("{}", True), ('{"a": 1}', False)])
def test_no_arguments_may_be_shown_as_an_empty_object(shown: str, taken: bool) -> None:
    assert taken is isinstance(with_call("", shown), TokenRow)


@pytest.mark.parametrize("shown, taken", [('{"a"', True), ('{"a": 1', True), ('{"b"', False), ('{"a": 12', False)])
def test_a_call_that_the_limit_cut_is_shown_as_far_as_it_came(shown: str, taken: bool) -> None:
    mark = FORMAT.tool_markers()
    section = (mark["<|tool_calls_section_begin|>"], mark["<|tool_call_begin|>"], *ENCODE("functions.f:0"))
    ids = (*ENCODE("So it is."), CLOSE, *section, mark["<|tool_call_argument_begin|>"], *ENCODE('{"a": 1'))
    completion = answer(
        content=None,
        finish_reason="length",
        native_finish_reason="length",
        tool_calls=(ToolCall("functions.f:0", "f", shown),),
        token_ids=ids,
        usage=counts(len(ids)),
    )

    assert taken is isinstance(reconstruct(PROMPT, completion, FORMAT, None), TokenRow)
