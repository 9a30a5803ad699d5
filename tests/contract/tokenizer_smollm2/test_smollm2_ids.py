"""The real SmolLM2 vocabulary: ids that the library gives, and the prompts and answers of its layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import route
from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import open_format
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Evidence, Prompt, Reason, Refusal, RefusedError, SpanKind, TokenRow, Usage

pytestmark = pytest.mark.contract

FORMAT = open_format("smollm2")
TOKENIZER = FORMAT.tokenizer
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "57 3543 3363 216 33 34 35 36 37 1495 42 15486 46494 37366 28 216 7906 240 178 239 230 284 46673 237 10391 237 "
    "41152 7365 111 7365 124 19076 201 8866 585 1792 1758 216 33 42 198 197 11193 1882 23 16421 11193 15107 225 128 "
    "10813 225 129 10813 235 119 321 231 10813 235 119 321 231 10813 235 117 12335 118 35090 38770 16525 26293 30581 "
    "216 31933 222 10283 241 10283 112 10501 10095 256",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER, {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
)


@pytest.mark.parametrize("text", ["ab\x04", "ab\x1dc", "ab\U00050000"])
def test_text_with_a_byte_that_the_vocabulary_lacks_is_refused(text: str) -> None:
    """The model's own tokenizer would leave the byte out."""
    with pytest.raises(RefusedError) as refused:
        TOKENIZER.encode(text)

    assert (Reason.UNENCODABLE, 2) == (refused.value.refusal.reason, refused.value.refusal.char_offset)


def test_a_prompt_has_the_templates_system_turn_or_its_own() -> None:
    own = Prompt("r", ({"role": "system", "content": "Be brief."}, *PROMPT.messages))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    assert f"<|im_start|>system\n{system}<|im_end|>\n{turns}" == TOKENIZER.decode_text(FORMAT.render(PROMPT))
    assert f"<|im_start|>system\nBe brief.<|im_end|>\n{turns}" == TOKENIZER.decode_text(FORMAT.render(own))


def test_a_prompt_is_the_same_in_either_mode_of_thinking() -> None:
    assert FORMAT.render(PROMPT) == FORMAT.render(replace(PROMPT, thinking=False))


@pytest.mark.parametrize("thinking", [True, False])
def test_returned_ids_are_an_answer_of_text_and_its_end(thinking: bool) -> None:
    prompt = replace(PROMPT, thinking=thinking)
    ids = (*TOKENIZER.encode("Yes, 12."), FORMAT.end_id)
    usage = Usage(len(FORMAT.render(prompt)), len(ids))
    whole = Completion(None, "Yes, 12.", finish_reason="stop", usage=usage, provider="P", model="m", token_ids=ids)
    row = reconstruct(prompt, whole, FORMAT, route())

    assert isinstance(row, TokenRow)
    assert (ids, Evidence.ENGINE_IDS) == (row.output_ids, row.evidence)
    assert [SpanKind.CONTENT, SpanKind.END] == [span.kind for span in row.spans]


def test_an_answer_with_reasoning_is_refused() -> None:
    usage = Usage(len(FORMAT.render(PROMPT)), 5)
    whole = Completion("So.", "Yes.", finish_reason="stop", usage=usage, provider="P", model="m")

    assert isinstance(reconstruct(PROMPT, whole, FORMAT, route()), Refusal)


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|im_start|>", "<repo_name>"])
def test_another_control_token_in_an_answer_is_refused(name: str) -> None:
    ids = (*TOKENIZER.encode("a"), TOKENIZER.id_of(name), FORMAT.end_id)
    with pytest.raises(RefusedError) as refused:
        FORMAT.layout(ids, thinking=True)

    assert (Reason.LAYOUT_INVALID, 1) == (refused.value.refusal.reason, refused.value.refusal.token_position)


@pytest.mark.parametrize(
    "message, said",
    [
        ({"role": "tool", "content": "x"}, "the role 'tool'"),
        ({"role": "user", "content": None}, "content is NoneType"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "a message has tool_calls"),
        ({"role": "assistant", "content": "a", "reasoning_content": "b"}, "a message has reasoning_content"),
    ],
    ids=["role", "null", "calls", "reasoning"],
)
def test_what_the_template_leaves_out_is_refused(message: dict[str, object], said: str) -> None:
    prompt = Prompt("r", (*PROMPT.messages, message))  # type: ignore[arg-type]  # a message is JSON
    with pytest.raises(RefusedError, match=said) as refused:
        FORMAT.render(prompt)

    assert Reason.PROMPT_UNSUPPORTED is refused.value.refusal.reason


def test_tools_are_refused() -> None:
    with pytest.raises(RefusedError, match="knows no tools") as refused:
        FORMAT.render(replace(PROMPT, tools=({"type": "function", "function": {"name": "f"}},)))

    assert (Reason.PROMPT_UNSUPPORTED, "tools") == (refused.value.refusal.reason, refused.value.refusal.field)
