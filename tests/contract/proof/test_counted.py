"""The one reading that closes the count: markers and parsed calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answer_parts import CALLED, section_ids
from harness.fixtures.answers import (
    ENCODE,
    PROMPT,
    REASONING,
    SECTION,
    answer,
    counts,
    of,
    reason,
    route,
)
from pipeline.proof.fingerprint import TraitName
from pipeline.records import (
    Json,
    JsonObject,
    Reason,
    TokenRow,
    ToolCall,
)

pytestmark = pytest.mark.contract

# Markers


def test_raw_markers_are_control_tokens_where_the_count_says_so() -> None:
    row = of(answer(content=SECTION, usage=counts(len(REASONING) + len(section_ids()) + 2)))

    assert isinstance(row, TokenRow)
    assert section_ids() == row.output_ids[len(REASONING) + 1 : -1]


def test_markers_that_were_written_as_text_are_text() -> None:
    row = of(answer(content=SECTION, usage=counts(len(REASONING) + len(ENCODE(SECTION)) + 2)))

    assert isinstance(row, TokenRow)
    assert tuple(ENCODE(SECTION)) == row.output_ids[len(REASONING) + 1 : -1]


def test_markers_on_an_unproven_route_leaked() -> None:
    """Markers on a route that is not proven to send them leaked."""
    told = answer(content=SECTION, usage=counts(len(REASONING) + len(section_ids()) + 2))

    assert Reason.LEAKED_CONTROL is reason(of(told, route({TraitName.MARKERS: "parsed"})))


def test_a_section_that_is_cut_off_by_an_end_token_is_refused() -> None:
    told = answer(content=SECTION.removesuffix("<|tool_calls_section_end|>"), usage=counts(len(REASONING) + 20))

    assert Reason.COUNT_MISMATCH is reason(of(told))


# Parsed calls


NAMED = '{"a": "x"}'
NAMED_IDS = (*section_ids()[:-4], *ENCODE(NAMED), *section_ids()[-2:])


def test_verbatim_calls_prove_their_section() -> None:
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))
    row = of(replace(told, usage=counts(len(REASONING) + len(NAMED_IDS) + 2)))

    assert isinstance(row, TokenRow)
    assert NAMED_IDS == row.output_ids[len(REASONING) + 1 : -1]


@pytest.mark.parametrize("identity", ["call_1", "f:0", "functions.g:0", "functions.f"])
def test_an_id_that_the_model_did_not_write_is_refused(identity: str) -> None:
    told = answer(**CALLED, tool_calls=(ToolCall(identity, "f", "{}"),))

    assert Reason.STRUCTURED_CALLS is reason(of(told))


def test_calls_after_earlier_calls_are_refused() -> None:
    """An engine that numbers by history gives another id than the model wrote."""
    call: Json = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling: JsonObject = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: JsonObject = {"role": "tool", "tool_call_id": "functions.f:0", "content": ""}
    prompt = replace(PROMPT, messages=(*PROMPT.messages, calling, result))
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:1", "f", "{}"),))

    assert Reason.STRUCTURED_CALLS is reason(of(told, prompt=prompt))


@pytest.mark.parametrize("lost", ["Bye.", " "], ids=["text", "a space"])
def test_text_lost_behind_the_section_shows_in_the_count(lost: str) -> None:
    """Text that a parser lost behind the section shows in the count."""
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))
    emitted = len(REASONING) + len(NAMED_IDS) + len(ENCODE(lost)) + 2

    assert Reason.COUNT_MISMATCH is reason(of(replace(told, usage=counts(emitted))))


@pytest.mark.parametrize("more", [-1, 1, 2], ids=str)
def test_markers_that_were_left_out_or_doubled_show_in_the_count(more: int) -> None:
    """An end token inside the section, no `</think>` before it, a second section."""
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))

    assert Reason.COUNT_MISMATCH is reason(of(replace(told, usage=counts(len(REASONING) + len(NAMED_IDS) + 2 + more))))
