"""The real Kimi vocabulary: ids that were published or computed with Moonshot's own code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import route
from harness.strategies.contract import control_ids
from pipeline.formats.registry import open_format
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Evidence, Prompt, Reason, Refusal, RefusedError, TokenRow, Usage

pytestmark = pytest.mark.contract

FORMAT = open_format("kimi-k2.5")
TOKENIZER = FORMAT.tokenizer
SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
ROUTE = route()
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
PROMPT_TOKENS = 9


def answered(reasoning: str, content: str, completion_tokens: int) -> TokenRow | Refusal:
    usage = Usage(PROMPT_TOKENS, completion_tokens)
    completion = Completion(reasoning, content, finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(PROMPT, completion, FORMAT, ROUTE)


test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "[BOS]": 163584,
        "[EOS]": 163585,
        "<|im_end|>": 163586,
        "<|im_user|>": 163587,
        "<|im_assistant|>": 163588,
        "<|reserved_token_163589|>": 163589,
        "<|im_system|>": 163594,
        "<|tool_calls_section_begin|>": 163595,
        "<|tool_calls_section_end|>": 163596,
        "<|tool_call_begin|>": 163597,
        "<|tool_call_argument_begin|>": 163598,
        "<|tool_call_end|>": 163599,
        "<|im_middle|>": 163601,
        "<think>": 163606,
        "</think>": 163607,
        "[PAD]": 163839,
    },
)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("</think>", [993, 39964, 29]),
        ("<|tool_call_section_begin|>", [27, 91, 20960, 21568, 31722, 37763, 91, 29]),
        ("\ufffd", [9618]),
    ],
    ids=["closing tag", "singular marker", "replacement character"],
)
def test_text_that_spells_or_resembles_control_tokens_is_text(text: str, expected: list[int]) -> None:
    assert expected == TOKENIZER.encode(text)


def test_argument_spacing_shows_in_the_count() -> None:
    assert (7, 6) == (len(TOKENIZER.encode('{"city": "Oslo"}')), len(TOKENIZER.encode('{"city":"Oslo"}')))


def test_white_space_at_the_seam_is_part_of_the_ids() -> None:
    """The ids of a published report: a trimmed join would have seven tokens for nine."""
    row = answered("I think so.\n", "\n\nYes.", 9)

    assert isinstance(row, TokenRow)
    assert (40, 2704, 971, 341, 163607, 382, 14104, 13, 163586) == row.output_ids
    assert row.evidence is Evidence.COUNTED


def test_spaces_of_a_detokenizer_are_refused_by_the_count() -> None:
    """Emitted: ok </think> 1 <|im_end|>; shown with a space on each side of the control token."""
    row = answered("ok ", " 1", 4)

    assert isinstance(row, Refusal)
    assert row.reason is Reason.COUNT_MISMATCH


def test_raw_tool_markers_become_their_ids() -> None:
    row = answered("t", SECTION, 13)

    assert isinstance(row, TokenRow)
    assert [163595, 163597, 163598, 163599, 163596] == [token for token in row.output_ids if 163595 <= token <= 163599]
    assert (163607, 163586) == (row.output_ids[1], row.output_ids[-1])


def test_markers_with_spaces_between_them_are_refused() -> None:
    assert isinstance(answered("t", SECTION.replace("><", "> <"), 13), Refusal)


def test_a_quoted_closing_tag_that_took_the_real_one_is_refused() -> None:
    """The parser cut at the quote: the true ids hold the tag both as text and as control token."""
    true_length = len(TOKENIZER.encode("The tag `</think>` closes it.")) + len(TOKENIZER.encode("\nAnswer")) + 2
    row = answered("The tag `", "` closes it.\nAnswer", true_length)

    assert isinstance(row, Refusal)


def test_a_run_of_spaces_that_tiktoken_gives_up_on_is_a_refusal() -> None:
    with pytest.raises(RefusedError) as refused:
        TOKENIZER.encode(" " * 1_000_000)

    assert refused.value.refusal.reason is Reason.UNENCODABLE


def test_a_prompt_is_cut_at_400_000_characters_and_no_answer() -> None:
    """Moonshot's own encode cuts inside the word: 80,007 ids; the model never cut what it wrote."""
    text = ("five chars" * 39_999)[:399_996] + " word" + " and the rest of the text"

    assert TOKENIZER.encode_prompt(text) != TOKENIZER.encode(text)
    assert TOKENIZER.encode_prompt(text) == TOKENIZER.encode(text[:400_000]) + TOKENIZER.encode(text[400_000:])


def test_control_tokens_of_a_long_prompt_are_sent_by_id() -> None:
    """An engine that is given text cuts it, so a count proves nothing there; ids that we send are never cut."""
    prompt = Prompt("r", ({"role": "user", "content": "a" * 24_990},))
    ids = FORMAT.render(prompt)

    assert [163587, 163601, 163586, 163588] == [token for token in ids if token >= 163584][:4]
    assert "cut a prompt of" in str(FORMAT.ambiguity(prompt))
    assert FORMAT.ambiguity(replace(prompt, messages=({"role": "user", "content": "a" * 24_900},))) is None
