"""The real DeepSeek-V3.2 vocabulary: ids that were published, and the prompts and answers of its layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import route
from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import (
    Completion,
    Evidence,
    Ids,
    JsonObject,
    Prompt,
    Reason,
    Refusal,
    RefusedError,
    Span,
    SpanKind,
    TokenLogprob,
    TokenRow,
    ToolCall,
    Usage,
)

pytestmark = pytest.mark.contract

FORMAT = open_format("deepseek-v3.2")
TOKENIZER = FORMAT.tokenizer
USER: JsonObject = {"role": "user", "content": "hi"}
PROMPT = Prompt("r", (USER,))
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALLS: JsonObject = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "Look.",
    "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": '{"city": "Köln", "days": 3, "at": [1.5, null]}'}},
        {"type": "function", "function": {"name": "g", "arguments": "{}"}},
    ],
}
RESULT: JsonObject = {"role": "tool", "content": "rain"}
STRIPPED = route({TraitName.MARKERS: "stripped"})
DSML, THINK, CLOSE, END = 128793, 128798, 128799, 1
CALL = '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'


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
        "<｜end▁of▁sentence｜>": END,
        "｜DSML｜": DSML,
        "<think>": THINK,
        "</think>": CLOSE,
        "<｜User｜>": 128803,
        "<｜Assistant｜>": 128804,
    },
)


# Prompts


@pytest.mark.parametrize("thinking, opened", [(True, "<think>"), (False, "</think>")])
def test_the_prompt_opens_thinking_or_closes_an_unopened_one(thinking: bool, opened: str) -> None:
    text = TOKENIZER.decode_text(FORMAT.render(replace(PROMPT, thinking=thinking)))

    assert f"<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>{opened}" == text


@pytest.mark.parametrize("thinking, thought", [(True, "<think>Look."), (False, "")])
def test_calls_and_results_are_tags_and_thinking_goes_on(thinking: bool, thought: str) -> None:
    text = TOKENIZER.decode_text(FORMAT.render(Prompt("r", (USER, CALLS, RESULT, RESULT), thinking=thinking)))

    assert (
        f"<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>{thought}</think>\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="at" string="false">[1.5, null]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>\n\n'
        "<function_results>\n<result>rain</result>\n<result>rain</result>\n</function_results>\n\n"
        f"{'<think>' if thinking else '</think>'}"
    ) == text


def test_thinking_before_the_last_question_is_dropped() -> None:
    text = TOKENIZER.decode_text(FORMAT.render(Prompt("r", (USER, {**CALLS, "tool_calls": []}, USER))))

    assert "<｜Assistant｜></think><｜end▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>" in text


def test_tools_stand_after_the_system_message() -> None:
    """Their tags hold control tokens."""
    ids = FORMAT.render(Prompt("r", ({"role": "system", "content": "Be brief."}, USER), (TOOL,)))
    text = TOKENIZER.decode_text(ids)

    assert text.startswith("<｜begin▁of▁sentence｜>Be brief.\n\n## Tools\nYou have access to a set of tools")
    assert '<functions>\n{"name": "f", "parameters": {"type": "object", "properties": {}}}\n</functions>\n<' in text
    assert (11, 2, 1) == tuple(map(ids.count, (DSML, THINK, CLOSE)))


def test_the_two_texts_of_tools_have_one_length() -> None:
    """DeepSeek's own golden prompts have blank lines where vLLM and SGLang have none."""
    prompt = Prompt("r", (USER,), (TOOL,))
    ids = FORMAT.render(prompt)
    text = TOKENIZER.decode_text(ids)
    for end in (
        "## Tools\n",
        "calls>\nString",
        "objects).\n",
        "example:\n",
        "calls>\n<function_r",
        "results>\n<t",
        "k>\nH",
    ):
        assert 1 == text.count(end), end
        text = text.replace(end, end.replace("\n", "\n\n"))

    assert len(ids) == len(TOKENIZER.encode_prompt(text))
    assert ids != tuple(TOKENIZER.encode_prompt(text))
    usage = Usage(len(ids), 6)
    row = reconstruct(
        prompt, Completion("So.", "Yes.", finish_reason="stop", usage=usage, provider="P", model="m"), FORMAT, route()
    )
    assert isinstance(row, Refusal)
    assert (Reason.PROMPT_UNSUPPORTED, "tools") == (row.reason, row.field)


def test_returned_prompt_ids_tell_which_text_was_served() -> None:
    prompt = Prompt("r", (USER,), (TOOL,))
    ids, emitted = FORMAT.render(prompt), (*TOKENIZER.encode("So."), CLOSE, *TOKENIZER.encode("Yes."), END)
    whole = Completion("So.", "Yes.", finish_reason="stop", usage=Usage(len(ids), 6), prompt_ids=ids, token_ids=emitted)

    assert isinstance(reconstruct(prompt, whole, FORMAT, None), TokenRow)
    assert isinstance(reconstruct(prompt, replace(whole, prompt_ids=ids[::-1]), FORMAT, None), Refusal)


@pytest.mark.parametrize(
    "messages, said",
    [
        ((USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "So."}), "nobody goes on"),
        ((USER, CALLS, RESULT), "nobody goes on"),
        ((USER, CALLS, RESULT, RESULT, RESULT), "answers no call"),
        ((USER, RESULT), "answers no call"),
        ((USER, {"role": "assistant", "content": "Yes."}, CALLS, RESULT, RESULT), "neither thought nor called"),
        (({**USER, "tools": [TOOL]},), "tools or a response format"),
        (({"role": "developer", "content": "x"}, USER), "the role 'developer'"),
        ((), "nobody goes on"),
    ],
    ids=[
        "answer last",
        "a result missing",
        "a result too many",
        "no call",
        "bare",
        "own tools",
        "developer",
        "nothing",
    ],
)
def test_what_the_encoder_does_not_say_is_refused(messages: tuple[JsonObject, ...], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        FORMAT.render(Prompt("r", messages))


# Answers


def answered(known: Fingerprint, content: str, tokens: int, **changes: object) -> TokenRow | Refusal:
    usage = Usage(len(FORMAT.render(PROMPT)), tokens)
    whole = Completion("So.", content, finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(PROMPT, replace(whole, **changes), FORMAT, known)  # type: ignore[arg-type]  # its own fields


@pytest.mark.parametrize("known", [route(), STRIPPED], ids=["raw", "stripped"])
def test_an_answer_without_calls_needs_no_trait_of_markers(known: Fingerprint) -> None:
    """It is rebuilt whatever the route does to markers."""
    row = answered(known, "Yes, 1 < 2.", 12)

    assert isinstance(row, TokenRow)
    assert (*TOKENIZER.encode("So."), CLOSE, *TOKENIZER.encode("Yes, 1 < 2."), END) == row.output_ids
    assert Evidence.COUNTED is row.evidence


WITH_CALL: Ids = (*TOKENIZER.encode("So."), CLOSE, *TOKENIZER.encode_prompt(CALL), END)


def test_raw_calls_are_a_section_up_to_the_end() -> None:
    """It begins at the first marker."""
    row = answered(route(), CALL, len(WITH_CALL))

    assert isinstance(row, TokenRow)
    assert WITH_CALL == row.output_ids
    first = WITH_CALL.index(DSML)
    assert [Span(SpanKind.CONTENT, 3, first), Span(SpanKind.TOOL_SECTION, first, len(WITH_CALL) - 1)] == list(
        row.spans[2:4]
    )


@pytest.mark.parametrize("shown", [CALL, CALL.replace("｜DSML｜", "")], ids=["with markers", "without"])
def test_returned_ids_are_believed_whatever_the_text_shows(shown: str) -> None:
    """The text may show the special token or not."""
    row = answered(route(), shown, len(WITH_CALL), token_ids=WITH_CALL)

    assert isinstance(row, TokenRow)
    assert WITH_CALL == row.output_ids


def test_logprobs_list_the_special_token() -> None:
    entries = tuple(TokenLogprob("", TOKENIZER.token_bytes(token), 0.0) for token in WITH_CALL)
    row = answered(STRIPPED, CALL.replace("｜DSML｜", ""), len(WITH_CALL), logprobs=entries)

    assert isinstance(row, TokenRow)
    assert (WITH_CALL, Evidence.LOGPROBS) == (row.output_ids, row.evidence)


@pytest.mark.parametrize("tag", ["<invoke", "</parameter>", "a <function_calls> b"])
@pytest.mark.parametrize("known", [STRIPPED, route({TraitName.MARKERS: None})], ids=["stripped", "unmeasured"])
def test_a_tag_without_its_marker_is_refused(known: Fingerprint, tag: str) -> None:
    """The route may have left it out."""
    tokens = 4 + len(TOKENIZER.encode(tag))
    rows = [answered(known, tag, tokens), answered(route(), tag, tokens)]

    assert [Reason.AMBIGUOUS_MARKER, None] == [row.reason if isinstance(row, Refusal) else None for row in rows]


@pytest.mark.parametrize("text", ["<", "a </inv"])
def test_so_is_a_cut_answer_that_may_end_inside_a_tag(text: str) -> None:
    row = answered(STRIPPED, text, 3 + len(TOKENIZER.encode(text)), finish_reason="length")

    assert isinstance(row, Refusal)
    assert Reason.AMBIGUOUS_MARKER is row.reason


@pytest.mark.parametrize(
    "text", ["a｜DSML｜b", "<｜DSML｜", "<｜DSML｜other>", "｜DSML｜invoke>", "<｜DSML｜｜DSML｜invoke>"]
)
def test_a_marker_outside_a_tag_is_no_layout(text: str) -> None:
    ids = (CLOSE, *TOKENIZER.encode_prompt(text), END)
    with pytest.raises(RefusedError) as refused:
        FORMAT.layout(ids, thinking=True)

    assert Reason.LAYOUT_INVALID is refused.value.refusal.reason
    assert ids.index(DSML) <= (refused.value.refusal.token_position or 0) <= ids.index(DSML) + 1


@pytest.mark.parametrize("text", ["<｜DSML｜", "<｜DSML｜func", "<｜DSML｜function_calls>\n<｜DSML｜in"])
def test_a_cut_may_stand_anywhere_in_a_tag(text: str) -> None:
    ids = (CLOSE, *TOKENIZER.encode_prompt(text))

    assert SpanKind.TOOL_SECTION is FORMAT.layout(ids, thinking=True)[-1].kind
    assert ids == FORMAT.assemble(FORMAT.parse(ids, thinking=True)).ids


def test_parsed_calls_are_refused_since_their_ids_were_invented() -> None:
    row = answered(route(), "", 20, finish_reason="tool_calls", tool_calls=(ToolCall("c", "f", "{}"),))

    assert isinstance(row, Refusal)
    assert Reason.STRUCTURED_CALLS is row.reason
