"""The real Qwen3 vocabulary: ids that were published, and the prompts and answers of its layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import route
from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import open_format
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import (
    Completion,
    Evidence,
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

FORMAT = open_format("qwen3")
TOKENIZER = FORMAT.tokenizer
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "40 3003 2684 220 16 17 18 19 20 2513 25 94880 586 51950 11 220 99489 323 220 89015 1773 80823 220 "
    "421 856 621 220 16 510 197 18788 1654 6 4086 18788 11162 229 111 146514 145233 378 235 145233 378 "
    "235 145665 14925 101 87244 78368 30484 97 34370 220 125451 5241 2928 256",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<|endoftext|>": 151643,
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<tool_call>": 151657,
        "</tool_call>": 151658,
        "<tool_response>": 151665,
        "</tool_response>": 151666,
        "<think>": 151667,
        "</think>": 151668,
    },
)


def test_the_model_opens_its_thinking_itself() -> None:
    """Told not to think, it is given an empty one."""
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    assert text == TOKENIZER.decode_text(FORMAT.render(PROMPT))
    assert f"{text}<think>\n\n</think>\n\n" == TOKENIZER.decode_text(FORMAT.render(replace(PROMPT, thinking=False)))


def answered(reasoning: str | None, content: str, tokens: int, **changes: object) -> TokenRow | Refusal:
    usage = Usage(len(FORMAT.render(PROMPT)), tokens)
    whole = Completion(reasoning, content, finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(PROMPT, replace(whole, **changes), FORMAT, route())  # type: ignore[arg-type]  # its own fields


def test_an_answer_is_rebuilt_with_its_unseen_think_token() -> None:
    row = answered("\nSo.\n", "\n\nYes.", 9)

    assert isinstance(row, TokenRow)
    assert "<think>\nSo.\n</think>\n\nYes.<|im_end|>" == TOKENIZER.decode_text(row.output_ids)
    assert [151667, 151668, 151645] == [token for token in row.output_ids if TOKENIZER.is_control(token)]
    assert Evidence.COUNTED is row.evidence


def test_raw_calls_are_one_section_with_what_is_between_them() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = [TOKENIZER.id_of("<tool_call>"), *TOKENIZER.encode('\n{"name": "f", "arguments": {}}\n')]
    one = [*ids, TOKENIZER.id_of("</tool_call>")]
    row = answered("So.", f"{call}\n{call}", 2 * len(one) + 2 + 4)

    assert isinstance(row, TokenRow)
    thought = (TOKENIZER.id_of("<think>"), *TOKENIZER.encode("So."), TOKENIZER.id_of("</think>"))
    assert (*thought, *one, *TOKENIZER.encode("\n"), *one, FORMAT.end_id) == row.output_ids
    assert [SpanKind.TOOL_SECTION, SpanKind.END] == [span.kind for span in row.spans][-2:]


def test_parsed_calls_are_refused() -> None:
    """Their JSON may have been written anew."""
    row = answered(None, "", 20, finish_reason="tool_calls", tool_calls=(ToolCall("c", "f", "{}"),))

    assert isinstance(row, Refusal)
    assert Reason.STRUCTURED_CALLS is row.reason


def test_text_that_nfc_changes_is_refused_with_its_place() -> None:
    row = answered(None, "cafe\u0301", 4)

    assert isinstance(row, Refusal)
    assert (Reason.NOT_NFC, "content", 3) == (row.reason, row.field, row.char_offset)


@pytest.mark.parametrize(
    "message, said",
    [
        ({"role": "developer", "content": "x"}, "the role 'developer'"),
        ({"role": "user", "content": None}, "content is NoneType"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "content is list"),
        ({"role": "assistant", "content": "<think>a</think>b"}, "earlier reasoning"),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}],
            },
            "write '{\"a\":1}' in another way",
        ),
    ],
    ids=["role", "null", "list", "thinking in content", "compact arguments"],
)
def test_what_engines_print_in_more_than_one_way_is_refused(message: dict[str, object], said: str) -> None:
    prompt = Prompt("r", (*PROMPT.messages, message))  # type: ignore[arg-type]  # a message is JSON
    with pytest.raises(RefusedError, match=said) as refused:
        FORMAT.render(prompt)

    assert Reason.PROMPT_UNSUPPORTED is refused.value.refusal.reason
