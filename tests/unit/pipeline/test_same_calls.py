"""Parsed calls beside the section that returned ids hold."""

from __future__ import annotations

import pytest

from harness.ordinary import CLOSE, ENCODE, END, FORMAT, PROMPT, answer, counts, route
from pipeline.reconstruct import reconstruct
from pipeline.records import Reason, Refusal, TokenRow, ToolCall
from pipeline.routes import TraitName


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
