"""The real DeepSeek-V3.1 vocabulary: ids that were published, and the prompts and answers of its layout."""

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
    JsonObject,
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

FORMAT = open_format("deepseek-v3.1")
TOKENIZER = FORMAT.tokenizer
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "43 5270 3557 223 6895 1883 2924 28 112752 57664 14 223 3427 305 223 4549 7245 2298 12457 2841 320 "
    "204 271 223 855 1527 2606 223 19 1137 200 47523 2581 9 3699 47523 77579 114 43754 115 25730 105 "
    "46088 25730 105 46088 25730 103 23597 12524 70223 6011 223 39311 18611 6909 262",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<｜begin▁of▁sentence｜>": 0,
        "<｜end▁of▁sentence｜>": 1,
        "<think>": 128798,
        "</think>": 128799,
        "<｜User｜>": 128803,
        "<｜Assistant｜>": 128804,
        "<｜tool▁calls▁begin｜>": 128806,
        "<｜tool▁calls▁end｜>": 128807,
        "<｜tool▁call▁begin｜>": 128808,
        "<｜tool▁call▁end｜>": 128809,
        "<｜tool▁sep｜>": 128814,
    },
)


def test_control_tokens_below_the_base_tokens_are_no_base_tokens() -> None:
    assert [3, 4, 5] == list(TOKENIZER.base_ids)[:3]
    assert 127_997 == TOKENIZER.base_size
    assert 0 not in TOKENIZER.encode("<｜begin▁of▁sentence｜>")


@pytest.mark.parametrize("thinking, opened", [(True, "<think>"), (False, "</think>")])
def test_the_prompt_begins_with_its_token_and_opens_thinking(thinking: bool, opened: str) -> None:
    text = TOKENIZER.decode_text(FORMAT.render(replace(PROMPT, thinking=thinking)))

    assert f"<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>{opened}" == text


def answered(content: str, tokens: int, **changes: object) -> TokenRow | Refusal:
    usage = Usage(len(FORMAT.render(PROMPT)), tokens)
    whole = Completion("So.", content, finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(PROMPT, replace(whole, **changes), FORMAT, route())  # type: ignore[arg-type]  # its own fields


def test_an_answer_is_rebuilt_with_its_thinking() -> None:
    row = answered("Yes.", 6)

    assert isinstance(row, TokenRow)
    assert (*TOKENIZER.encode("So."), 128799, *TOKENIZER.encode("Yes."), 1) == row.output_ids
    assert Evidence.COUNTED is row.evidence


def test_raw_calls_are_one_section() -> None:
    one = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    tokens = len(TOKENIZER.encode("So.")) + 2 + 2 + 2 * (3 + len(TOKENIZER.encode("f")) + len(TOKENIZER.encode("{}")))
    row = answered(f"<｜tool▁calls▁begin｜>{one}{one}<｜tool▁calls▁end｜>", tokens)

    assert isinstance(row, TokenRow)
    assert [SpanKind.REASONING, SpanKind.THINK_CLOSE, SpanKind.TOOL_SECTION, SpanKind.END] == [
        span.kind for span in row.spans
    ]


def test_parsed_calls_are_refused_since_their_ids_were_invented() -> None:
    row = answered("", 20, finish_reason="tool_calls", tool_calls=(ToolCall("c", "f", "{}"),))

    assert isinstance(row, Refusal)
    assert Reason.STRUCTURED_CALLS is row.reason


@pytest.mark.parametrize(
    "messages, said",
    [
        (({"role": "tool", "content": "x"},), "the last message is not the user's"),
        (({"role": "assistant", "content": "a</think>b"}, *PROMPT.messages), "holds its thinking"),
    ],
    ids=["tool last", "thinking in content"],
)
def test_what_the_template_does_not_say_is_refused(messages: tuple[JsonObject, ...], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        FORMAT.render(Prompt("r", (*PROMPT.messages, *messages)))
