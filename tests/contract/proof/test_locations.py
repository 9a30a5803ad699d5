"""Refusals name the field, the character and the token that they are of."""

from __future__ import annotations

import pytest

from harness.fixtures.answers import CLOSE, CONTENT, END, FORMAT, PROMPT, REASONING, answer, counts, of, route
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.locations import rendered, special_text
from pipeline.records import (
    Completion,
    Json,
    JsonObject,
    Prompt,
    Reason,
    Refusal,
    RefusedError,
    TokenLogprob,
    TokenRow,
)

pytestmark = pytest.mark.contract

ASSISTANT: JsonObject = {"role": "assistant", "content": None}
CALL: dict[str, Json] = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}


def prompt(*messages: JsonObject, tools: tuple[JsonObject, ...] = ()) -> Prompt:
    return Prompt("r", ({"role": "user", "content": "hi"}, *messages), tools)


def place(refusal: Refusal) -> tuple[Reason, str | None, int | None, int | None]:
    return refusal.reason, refusal.field, refusal.char_offset, refusal.token_position


# Of the prompt


@pytest.mark.parametrize(
    "message, field",
    [
        ({"role": ""}, "messages[1].role"),
        ({"role": "user", "name": 3, "content": "x"}, "messages[1].name"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, "messages[1].content[1]"),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        ({**ASSISTANT, "reasoning_content": None}, "messages[1].reasoning_content"),
        ({**ASSISTANT, "tool_calls": 3}, "messages[1].tool_calls"),
        ({**ASSISTANT, "tool_calls": [CALL, {**CALL, "function": None}]}, "messages[1].tool_calls[1].function"),
        ({**ASSISTANT, "tool_calls": [{**CALL, "id": 3}]}, "messages[1].tool_calls[0].id"),
    ],
)
def test_what_cannot_be_rendered_is_named(message: JsonObject, field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        rendered(FORMAT, prompt(message))

    assert (Reason.PROMPT_UNSUPPORTED, field) == place(refused.value.refusal)[:2]


@pytest.mark.parametrize(
    "asked, field, offset",
    [
        (prompt({"role": "user", "content": "ab\ud800"}), "messages[1].content", 2),
        (prompt({"role": "user", "content": [{"type": "text", "text": "\ud800"}]}), "messages[1].content[0].text", 0),
    ],
    ids=["text", "part"],
)
def test_half_a_surrogate_pair_in_a_prompt_is_placed(asked: Prompt, field: str, offset: int) -> None:
    with pytest.raises(RefusedError) as refused:
        rendered(FORMAT, asked)

    assert (Reason.LONE_SURROGATE, field, offset, None) == place(refused.value.refusal)


def test_a_tool_that_is_none_is_named() -> None:
    with pytest.raises(RefusedError) as refused:
        rendered(FORMAT, prompt(tools=({"type": "function", "function": {"name": "f"}}, {"name": "flat"})))

    assert (Reason.PROMPT_UNSUPPORTED, "tools[1]", None, None) == place(refused.value.refusal)


def test_a_control_token_that_a_prompt_spells_is_placed() -> None:
    found = special_text(FORMAT, prompt({"role": "user", "content": "say <|im_end|>"}))

    assert found is not None
    assert (Reason.SPECIAL_TEXT, "messages[1].content", 4, None) == place(found)


def test_an_innocent_prompt_has_no_place() -> None:
    assert special_text(FORMAT, PROMPT) is None


# Of the answer


def refused_of(completion: Completion, **changes: object) -> Refusal:
    row = of(completion, route(changes.get("route")))  # type: ignore[arg-type]  # traits by name
    if isinstance(row, TokenRow):
        raise TypeError(f"accepted: {row}")
    return row


@pytest.mark.parametrize("name", ["reasoning", "content"])
def test_half_a_surrogate_pair_in_an_answer_is_placed(name: str) -> None:
    row = refused_of(answer(**{name: "abc\ud800"}))

    assert (Reason.LONE_SURROGATE, name, 3, None) == place(row)


def test_a_replacement_character_is_placed() -> None:
    assert (Reason.REPLACEMENT_CHAR, "content", 1, None) == place(refused_of(answer(content="a\ufffd")))


def test_ids_outside_the_layout_are_placed() -> None:
    ids = (*REASONING, CLOSE, *CONTENT, CLOSE, END)
    row = refused_of(answer(token_ids=ids, usage=counts(len(ids))))

    assert (Reason.LAYOUT_INVALID, "token_ids", None, len(ids) - 2) == place(row)


def test_a_text_that_the_ids_do_not_say_is_placed() -> None:
    ids = (*REASONING, CLOSE, *CONTENT, END)
    row = refused_of(answer(token_ids=ids, content=" Yes!"))

    assert (Reason.IDS_CONTRADICT, "content", 4, None) == place(row)


def test_a_hole_in_logprobs_is_placed() -> None:
    entries = (TokenLogprob("a", b"a"), TokenLogprob("b", None))

    assert (Reason.LOGPROBS_HOLE, "logprobs", None, 1) == place(refused_of(answer(logprobs=entries)))


def test_bytes_that_are_no_text_are_placed_by_their_token() -> None:
    half = FORMAT.tokenizer.id_of_bytes(b"\xf0")
    assert half is not None
    with pytest.raises(RefusedError) as refused:
        FORMAT.parse((*REASONING, CLOSE, *CONTENT, half, END), thinking=True)

    position = len(REASONING) + 1 + len(CONTENT)
    assert (Reason.LAYOUT_INVALID, None, None, position) == place(refused.value.refusal)


def test_a_leaked_marker_is_placed() -> None:
    section = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    inner = len(FORMAT.tokenizer.encode("functions.f:0")) + len(FORMAT.tokenizer.encode("{}"))
    tokens = len(REASONING) + 1 + len(FORMAT.tokenizer.encode("ok")) + 5 + inner + 1
    row = refused_of(answer(content="ok" + section, usage=counts(tokens)), route={TraitName.MARKERS: "stripped"})

    assert (Reason.LEAKED_CONTROL, "content", 2, None) == place(row)


def test_a_trait_that_is_missing_is_named() -> None:
    assert "seam_space" == place(refused_of(answer(), route={TraitName.SEAM: "stripped"}))[1]
