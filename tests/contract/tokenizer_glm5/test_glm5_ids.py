"""The real GLM-5 vocabulary: ids that were published, and the prompts and answers of its layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import route
from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import FORMATS as FAMILIES
from pipeline.formats.registry import open_format
from pipeline.formats.tokenizer_json import GLM_5_SHA256
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import (
    Completion,
    Evidence,
    Ids,
    Prompt,
    Reason,
    Refusal,
    RefusedError,
    SpanKind,
    TokenRow,
    ToolCall,
    Usage,
)

pytestmark = pytest.mark.contract

FORMAT = open_format("glm-5")
TOKENIZER = FORMAT.tokenizer
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
BY_ROLE = route({TraitName.TURN_END: "by_role"})
USER, OBSERVATION, END_OF_TEXT = 154827, 154829, 154820


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "40 3003 2684 220 108714 100461 2513 25 94083 586 51609 11 111085 323 220 88277 1773 80169 220 421 "
    "856 621 220 16 510 197 18755 1654 6 4086 18755 11157 229 111 9281 229 112 151929 124564 151929 "
    "124564 151927 14913 101 86522 77740 30366 97 34200 220 49438 35705 34339 5241 2928 256",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<|endoftext|>": END_OF_TEXT,
        "[gMASK]": 154822,
        "<sop>": 154824,
        "<|user|>": USER,
        "<|assistant|>": 154828,
        "<|observation|>": OBSERVATION,
        "<think>": 154841,
        "</think>": 154842,
        "<tool_call>": 154843,
        "</tool_call>": 154844,
        "<arg_key>": 154847,
        "</arg_key>": 154848,
        "<arg_value>": 154849,
        "</arg_value>": 154850,
    },
)


@pytest.mark.parametrize("thinking, opened", [(True, "<think>"), (False, "</think>")])
def test_the_prompt_opens_thinking_or_closes_an_unopened_one(thinking: bool, opened: str) -> None:
    text = TOKENIZER.decode_text(FORMAT.render(replace(PROMPT, thinking=thinking)))

    assert f"[gMASK]<sop><|user|>hi<|assistant|>{opened}" == text


def test_the_nvfp4_checkpoint_is_glm_5_in_layout_and_vocabulary() -> None:
    profile = open_format("glm-5-nvfp4")

    assert ("glm-5-nvfp4", FORMAT.tokenizer.sha256) == (profile.name, profile.tokenizer.sha256)
    assert FAMILIES["glm-5"].sha256 == FAMILIES["glm-5-nvfp4"].sha256 == GLM_5_SHA256
    for thinking in (True, False):
        assert FORMAT.render(replace(PROMPT, thinking=thinking)) == profile.render(replace(PROMPT, thinking=thinking))
    ids = (*TOKENIZER.encode("So."), 154842, *TOKENIZER.encode("Yes."), USER)
    assert FORMAT.layout(ids, thinking=True) == profile.layout(ids, thinking=True)


def answered(content: str, tokens: int, **changes: object) -> TokenRow | Refusal:
    usage = Usage(len(FORMAT.render(PROMPT)), tokens)
    whole = Completion("So.", content, finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(PROMPT, replace(whole, **changes), FORMAT, BY_ROLE)  # type: ignore[arg-type]  # its own fields


def test_an_answer_ends_with_the_marker_of_the_user() -> None:
    row = answered("Yes.", 6)

    assert isinstance(row, TokenRow)
    assert (*TOKENIZER.encode("So."), 154842, *TOKENIZER.encode("Yes."), USER) == row.output_ids
    assert Evidence.COUNTED is row.evidence


def test_untyped_arguments_are_text_between_markers() -> None:
    """Calls end with the marker of the tool."""
    call = "<tool_call>f<arg_key>day</arg_key><arg_value>007</arg_value></tool_call>"
    texts = ["f", "day", "007"]
    tokens = len(TOKENIZER.encode("So.")) + 1 + 6 + sum(len(TOKENIZER.encode(text)) for text in texts) + 1
    row = answered(call, tokens)

    assert isinstance(row, TokenRow)
    assert OBSERVATION == row.output_ids[-1]
    assert [SpanKind.REASONING, SpanKind.THINK_CLOSE, SpanKind.TOOL_SECTION, SpanKind.END] == [
        span.kind for span in row.spans
    ]


def test_no_text_tells_the_end_token_of_an_unproven_route() -> None:
    usage = Usage(len(FORMAT.render(PROMPT)), 6)
    whole = Completion("So.", "Yes.", finish_reason="stop", usage=usage, provider="P", model="m")
    rows = [
        reconstruct(PROMPT, whole, FORMAT, known) for known in (route(), route({TraitName.TURN_END: "end_of_text"}))
    ]

    assert [Reason.ROUTE_UNPROVEN, Reason.AMBIGUOUS_LAYOUT] == [row.reason for row in rows if isinstance(row, Refusal)]


@pytest.mark.parametrize("value, proven", [("kept", True), ("kept", False), (None, False)])
@pytest.mark.parametrize("place", ["reasoning", "content"])
def test_a_line_feed_needs_a_route_proven_to_keep_cr_lf(value: str | None, proven: bool, place: str) -> None:
    """CR LF is one token as LF is, so that neither a count nor the number of deltas tells which was sampled."""
    assert 1 == len(TOKENIZER.encode("\r\n")) == len(TOKENIZER.encode("\n"))
    assert len(TOKENIZER.encode("a\r\nb")) == len(TOKENIZER.encode("a\nb"))
    traits = {**BY_ROLE.traits, TraitName.LINE_ENDS: Trait(value, 50, proven)}
    shown = {"reasoning": "So.", "content": "Yes.", place: "a\nb"}
    usage = Usage(len(FORMAT.render(PROMPT)), 3 + 1 + 2 + 1)
    whole = Completion(**shown, finish_reason="stop", usage=usage)  # type: ignore[arg-type]  # its own two fields
    row = reconstruct(PROMPT, whole, FORMAT, replace(BY_ROLE, traits=traits))

    assert proven == isinstance(row, TokenRow)
    if isinstance(row, Refusal):
        assert (Reason.ROUTE_UNPROVEN, TraitName.LINE_ENDS) == (row.reason, row.field)


@pytest.mark.parametrize("end, wanted", [(USER, True), (OBSERVATION, False), (END_OF_TEXT, False)])
def test_returned_ids_with_another_end_are_refused(end: int, wanted: bool) -> None:
    ids: Ids = (*TOKENIZER.encode("So."), 154842, *TOKENIZER.encode("Yes."), end)
    row = answered("Yes.", len(ids), token_ids=ids)

    assert wanted == isinstance(row, TokenRow)
    if isinstance(row, Refusal):
        assert row.reason in {Reason.LAYOUT_INVALID, Reason.IDS_CONTRADICT}


def test_parsed_calls_are_refused_since_their_types_were_guessed() -> None:
    row = answered("", 20, finish_reason="tool_calls", tool_calls=(ToolCall("c", "f", '{"day": 7}'),))

    assert isinstance(row, Refusal)
    assert Reason.STRUCTURED_CALLS is row.reason


def test_a_prompt_that_spells_nothink_is_refused_without_ids() -> None:
    prompt = Prompt("r", ({"role": "user", "content": "hi /nothink"},))
    usage = Usage(len(FORMAT.render(prompt)), 6)
    row = reconstruct(prompt, Completion("So.", "Yes.", finish_reason="stop", usage=usage), FORMAT, BY_ROLE)

    assert isinstance(row, Refusal)
    assert Reason.SPECIAL_TEXT is row.reason


def test_null_content_is_refused_since_the_template_prints_none() -> None:
    prompt = Prompt("r", (*PROMPT.messages, {"role": "assistant", "content": None}))
    with pytest.raises(RefusedError, match="prints as None"):
        FORMAT.render(prompt)
