"""The one reading that closes the count: markers and parsed calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.answer_parts import CALLED, section_ids
from harness.fixtures.answers import (
    CLOSE,
    ENCODE,
    FORMAT,
    PROMPT,
    REASONING,
    SECTION,
    answer,
    counts,
    of,
    reason,
    route,
    told,
)
from harness.tiny_target.vocabulary import write_vocabulary
from pipeline.formats.format import Assembled, Parts
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.proof.answer import Answer
from pipeline.proof.counted import Reading, only_closing
from pipeline.proof.fingerprint import TraitName
from pipeline.records import (
    Delta,
    Evidence,
    Json,
    JsonObject,
    Reason,
    RefusedError,
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
    shown = answer(content=SECTION, usage=counts(len(REASONING) + len(section_ids()) + 2))

    assert Reason.LEAKED_CONTROL is reason(of(shown, route({TraitName.MARKERS: "parsed"})))


def test_a_section_that_is_cut_off_by_an_end_token_is_refused() -> None:
    shown = answer(content=SECTION.removesuffix("<|tool_calls_section_end|>"), usage=counts(len(REASONING) + 20))

    assert Reason.COUNT_MISMATCH is reason(of(shown))


def test_of_two_readings_with_the_counted_length_none_is_taken() -> None:
    asked = Answer(PROMPT, answer(), FORMAT, route(), ended=True)
    plain = Reading(Parts("a", think_closed=True, body=("b",), ended=True), Assembled((1, 2), ()), 2)
    marked = replace(plain, parts=replace(plain.parts, body=(CLOSE,)))

    with pytest.raises(RefusedError) as alike:
        only_closing(asked, [plain, replace(plain)], 2)
    with pytest.raises(RefusedError) as other:
        only_closing(asked, [plain, marked], 2)
    assert plain is only_closing(asked, [plain, replace(marked, count=3)], 2)

    assert Reason.AMBIGUOUS_LAYOUT is alike.value.refusal.reason
    assert Reason.AMBIGUOUS_MARKER is other.value.refusal.reason


def test_a_marker_that_is_as_long_as_text_is_refused(tmp_path: Path) -> None:
    """Exclamation marks are a token each, but one token with `<|` behind them: a marker as text is as long."""
    name = "<|tool_calls_section_begin|>"
    most = len(name) - 2
    joined = ["!" * count + "<|" for count in range(most + 1)]
    ranks = [*(bytes([value]) for value in range(256)), *(piece.encode() for piece in joined)]
    write_vocabulary({piece: rank for rank, piece in enumerate(ranks)}, tmp_path)
    fmt = load_format("kimi-k2.5", load_tokenizer(tmp_path))
    begin, end, call, argument, stop = fmt.tool_markers().values()
    encode = fmt.tokenizer.encode
    section = (begin, call, *encode("functions.f:0"), argument, *encode("{}"), stop, end)
    alone, beside = (len(encode("R")) + 1 + len(encode("!" * count)) + len(section) + 1 for count in (most - 1, most))

    row = told(fmt, ("R", "!" * (most - 1) + SECTION), alone)
    refused = told(fmt, ("R", "!" * most + SECTION), beside)

    assert len(encode("!" * most + name)) == len(encode("!" * most)) + 1
    assert isinstance(row, TokenRow)
    assert Reason.AMBIGUOUS_MARKER is reason(refused)


# Parsed calls


NAMED = '{"a": "x"}'
NAMED_IDS = (*section_ids()[:-4], *ENCODE(NAMED), *section_ids()[-2:])


def test_verbatim_calls_prove_their_section() -> None:
    shown = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))
    row = of(replace(shown, usage=counts(len(REASONING) + len(NAMED_IDS) + 2)))

    assert isinstance(row, TokenRow)
    assert NAMED_IDS == row.output_ids[len(REASONING) + 1 : -1]


def test_deltas_beside_parsed_calls_are_proven_by_the_count() -> None:
    """No delta shows the section that the calls were taken from."""
    calls = (ToolCall("functions.f:0", "f", NAMED),)
    thought = tuple(Delta("reasoning", FORMAT.tokenizer.decode_text([token])) for token in REASONING)
    streamed = answer(**CALLED, tool_calls=calls, deltas=thought)

    whole = of(replace(streamed, usage=counts(len(REASONING) + len(NAMED_IDS) + 2)))
    without = of(replace(streamed, usage=counts(len(REASONING) + 2)))

    assert isinstance(whole, TokenRow)
    assert Evidence.COUNTED is whole.evidence
    assert Reason.COUNT_MISMATCH is reason(without)


@pytest.mark.parametrize("identity", ["call_1", "f:0", "functions.g:0", "functions.f"])
def test_an_id_that_the_model_did_not_write_is_refused(identity: str) -> None:
    shown = answer(**CALLED, tool_calls=(ToolCall(identity, "f", "{}"),))

    assert Reason.STRUCTURED_CALLS is reason(of(shown))


def test_calls_after_earlier_calls_are_refused() -> None:
    """An engine that numbers by history gives another id than the model wrote."""
    call: Json = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling: JsonObject = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: JsonObject = {"role": "tool", "tool_call_id": "functions.f:0", "content": ""}
    prompt = replace(PROMPT, messages=(*PROMPT.messages, calling, result))
    shown = answer(**CALLED, tool_calls=(ToolCall("functions.f:1", "f", "{}"),))

    assert Reason.STRUCTURED_CALLS is reason(of(shown, prompt=prompt))


@pytest.mark.parametrize("lost", ["Bye.", " "], ids=["text", "a space"])
def test_text_lost_behind_the_section_shows_in_the_count(lost: str) -> None:
    """Text that a parser lost behind the section shows in the count."""
    shown = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))
    emitted = len(REASONING) + len(NAMED_IDS) + len(ENCODE(lost)) + 2

    assert Reason.COUNT_MISMATCH is reason(of(replace(shown, usage=counts(emitted))))


@pytest.mark.parametrize("more", [-1, 1, 2], ids=str)
def test_markers_that_were_left_out_or_doubled_show_in_the_count(more: int) -> None:
    """An end token inside the section, no `</think>` before it, a second section."""
    shown = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))

    assert Reason.COUNT_MISMATCH is reason(of(replace(shown, usage=counts(len(REASONING) + len(NAMED_IDS) + 2 + more))))
