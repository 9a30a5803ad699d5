"""The catalogue of real reports, part one: answers whose text is not what was emitted.

Each case is a report's own small input, told as an answer of a route that is proven to tell all, on Kimi's vocabulary:
what comes out is the ids that the report calls true, or a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.fixtures.answers import PROMPT, reason, route, told
from pipeline.formats.format import Format
from pipeline.formats.registry import FormatError, open_format
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Evidence, Json, JsonObject, Prompt, Reason, SpanKind, TokenRow, ToolCall, Usage

pytestmark = pytest.mark.reference

Case = Callable[[Format, dict[str, Any]], None]
LENGTH: dict[str, Any] = {"finish_reason": "length", "native_finish_reason": "length"}
MIXING = route({TraitName.UNCLOSED: "content"})
"""A route that shows thinking as content where it finds no closing tag."""

INSTANT = Prompt("r", PROMPT.messages, thinking=False)


def count(fmt: Format, *texts: str) -> int:
    return sum(len(fmt.tokenizer.encode(text)) for text in texts)


def called(*calls: dict[str, Any]) -> dict[str, Any]:
    """The changes that make an answer one of parsed calls."""
    parsed = tuple(
        ToolCall(call.get("id", "functions.w:0"), call["function"].get("name", "w"), call["function"]["arguments"])
        for call in calls
    )
    return {"tool_calls": parsed, "finish_reason": "tool_calls", "native_finish_reason": None}


def section(fmt: Format, *calls: tuple[str, str]) -> int:
    """How many tokens a whole section of these calls (id, arguments) has."""
    return 2 + sum(3 + count(fmt, identity, arguments) for identity, arguments in calls)


# White space


def spaces_round_added_tokens(fmt: Format, given: dict[str, Any]) -> None:
    true = told(fmt, ("ok", "1"), 4)

    assert isinstance(true, TokenRow)
    assert (687, 163607, 16, 163586) == true.output_ids
    assert Reason.COUNT_MISMATCH is reason(told(fmt, (given["reasoning"], given["content"]), 4))


def spaces_inside_a_section(fmt: Format, given: dict[str, Any]) -> None:
    emitted = 1 + 1 + section(fmt, ("functions.ping:0", "{}")) + 1

    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("x", given["content"]), emitted))


def a_parser_that_strips(fmt: Format, given: dict[str, Any]) -> None:
    left, right = given["raw_model_text"].split("</think>")
    true = told(fmt, (left, right), 9)

    assert isinstance(true, TokenRow)
    assert (40, 2704, 971, 341, 163607, 382, 14104, 13, 163586) == true.output_ids
    assert Reason.COUNT_MISMATCH is reason(told(fmt, (given["reasoning"], given["content"]), 9))
    stripping = route({TraitName.SEAM: "stripped"})
    assert Reason.SEAM_LOSSY is reason(told(fmt, (given["reasoning"], given["content"]), 9, stripping))


def two_pools_of_one_provider(fmt: Format, given: dict[str, Any]) -> None:
    """The contract is of one way; where two pools answer under one name, each row's own count tells them apart."""
    emitted = count(fmt, "r", " hello") + 2
    rows = [told(fmt, (given[pool]["reasoning"], given[pool]["content"]), emitted + 1) for pool in ("pool_a", "pool_b")]

    assert [Reason.COUNT_MISMATCH, Reason.COUNT_MISMATCH] == [reason(row) for row in rows]
    assert isinstance(told(fmt, ("r", given["pool_a"]["content"]), emitted), TokenRow)
    assert Reason.SEAM_LOSSY is reason(told(fmt, ("r", "hello"), emitted, route({TraitName.SEAM: "stripped"})))


def content_from_two_places(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, "\nHi", "a", "\nBye") + 3

    assert Reason.COUNT_MISMATCH is reason(told(fmt, (given["reasoning"], given["content"]), emitted))


# The end of the thinking


def no_closing_tag_before_the_tools(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, given["reasoning"]) + section(fmt, ("functions.get_weather:0", "{}")) + 1

    assert Reason.COUNT_MISMATCH is reason(
        told(fmt, (given["reasoning"], None), emitted, **called(*given["tool_calls"]))
    )


def all_reasoning_as_content(fmt: Format, given: dict[str, Any]) -> None:
    hidden = count(fmt, given["content"]) + 2

    assert Reason.AMBIGUOUS_LAYOUT is reason(told(fmt, (None, given["content"]), hidden, MIXING))


def a_quoted_closing_tag(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, given["true_reasoning"], "\nAnswer") + 2

    assert [2078, 39964, 29] == fmt.tokenizer.encode(" </think>")
    assert Reason.COUNT_MISMATCH is reason(told(fmt, (given["reasoning"], given["content"]), emitted))


def thinking_inlined_though_it_was_off(fmt: Format, given: dict[str, Any]) -> None:
    """A route that ignores the switch serves the other prompt, and that has another length."""
    emitted = count(fmt, given["content"]) + 1
    ignoring = Usage(len(fmt.render(PROMPT)), emitted)

    assert isinstance(told(fmt, (None, given["content"]), emitted, prompt=INSTANT), TokenRow)
    row = told(fmt, (None, given["content"]), emitted, prompt=INSTANT, usage=ignoring)
    assert Reason.PROMPT_MISMATCH is reason(row)


def a_switch_that_is_ignored(fmt: Format, given: dict[str, Any]) -> None:
    said = given["message"]["reasoning_content"]
    row = told(fmt, (said, None), given["request"]["max_tokens"], prompt=INSTANT, **LENGTH)

    assert Reason.LAYOUT_INVALID is reason(row)


def a_foreign_thinking_token(fmt: Format, given: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        open_format(given["model"].lower())
    sampled = 4

    as_text = count(fmt, given["content"]) + 2
    assert Reason.AMBIGUOUS_LAYOUT is reason(told(fmt, (None, given["content"]), as_text, MIXING))
    assert Reason.COUNT_MISMATCH is reason(told(fmt, (None, given["content"]), sampled))


def a_grammar_that_forbids_the_closing_tag(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, given["reasoning"]) + 1

    assert Reason.COUNT_MISMATCH is reason(told(fmt, (given["reasoning"], given["content"]), emitted))


def cut_reasoning_as_content(fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.COUNT_MISMATCH is reason(told(fmt, (None, given["content"]), 4, **LENGTH))


def words_before_the_closing_tag(fmt: Format, given: dict[str, Any]) -> None:
    """Thinking inline in the content: nothing is moved over a marker, and the marker's place is not guessed."""
    emitted = count(fmt, "\nI will greet.Hello, how are\n", "\n\nyou today?") + 3

    assert reason(told(fmt, (None, given["content"]), emitted)) in {Reason.COUNT_MISMATCH, Reason.AMBIGUOUS_LAYOUT}


# Tool calls


def text_after_the_section(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, "t", "Back soon.") + 1 + section(fmt, ("functions.f:0", "{}")) + 1

    assert given["usage"]["completion_tokens"] == emitted
    row = told(fmt, (given["reasoning"], given["content"]), emitted, **called(*given["tool_calls"]))
    assert Reason.COUNT_MISMATCH is reason(row)


def two_sections(fmt: Format, given: dict[str, Any]) -> None:
    calls = [
        {"id": f"functions.{name}:{i}", "function": {"name": name, "arguments": "{}"}} for i, name in enumerate("AB")
    ]
    emitted = 2 + count(fmt, "r", "First A. ", " Then B. ")
    emitted += section(fmt, ("functions.A:0", "{}")) + section(fmt, ("functions.B:1", "{}"))

    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", given["content"]), emitted, **called(*calls)))


def a_renumbered_index(fmt: Format, given: dict[str, Any]) -> None:
    encode = fmt.tokenizer.encode
    assert len(encode(given["model_emitted"])) == len(encode(given["api_returned"]))
    call: Json = {"id": "functions.search:0", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    calling: JsonObject = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: JsonObject = {"role": "tool", "tool_call_id": "functions.search:0", "content": ""}
    prompt = Prompt("r", (*PROMPT.messages, calling, result))
    again = {"id": given["api_returned"], "function": {"name": "search", "arguments": "{}"}}
    row = told(fmt, ("r", None), 3 + section(fmt, (given["model_emitted"], "{}")), prompt=prompt, **called(again))

    assert Reason.STRUCTURED_CALLS is reason(row)


def arguments_cut_by_a_shared_delta(fmt: Format, given: dict[str, Any]) -> None:
    emitted = 3 + section(fmt, ("functions.a:0", '{"x": 1}'), ("functions.b:1", '{"y": 2}'))
    calls = [{**call, "function": {**call["function"], "name": call["id"][10]}} for call in given["tool_calls"]]

    assert Reason.FINISH_CONTRADICTS is reason(told(fmt, ("r", None), emitted, **called(*calls)))


def an_end_token_inside_the_section(fmt: Format, given: dict[str, Any]) -> None:
    emitted = 3 + section(fmt, ("functions.f:0", '{"a": 1}')) - 2

    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", None), emitted, **called(*given["tool_calls"])))


def markers_in_the_reasoning(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, "plan") + 2 + section(fmt, ("functions.f:0", "{}"))
    row = told(fmt, (given["reasoning"], None), emitted, **called(*given["tool_calls"]))

    assert Reason.COUNT_MISMATCH is reason(row)


def compact_arguments(fmt: Format, given: dict[str, Any]) -> None:
    emitted, returned = given["model_emitted"], given["api_returned"]
    total = 3 + section(fmt, ("functions.w:0", emitted))
    call = {"function": {"arguments": returned}}

    assert (7, 6) == (count(fmt, emitted), count(fmt, returned))
    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", None), total, **called(call)))
    compacting = route({TraitName.TOOL_ARGUMENTS: "reserialised"})
    assert Reason.STRUCTURED_CALLS is reason(told(fmt, ("r", None), total - 1, compacting, **called(call)))


def stripped_arguments(fmt: Format, given: dict[str, Any]) -> None:
    call = {"function": {"arguments": given["api_returned"]}}
    stripping = route({TraitName.TOOL_ARGUMENTS: "reserialised"})

    assert Reason.STRUCTURED_CALLS is reason(told(fmt, ("r", None), 30, stripping, **called(call)))


def a_cut_that_says_tool_calls(fmt: Format, given: dict[str, Any]) -> None:
    call = {"id": "functions.w:0", **given["tool_calls"][0]}
    emitted = given["usage"]["completion_tokens"]

    assert Reason.FINISH_CONTRADICTS is reason(told(fmt, ("r", None), emitted, **called(call)))


def json_in_place_of_native_calls(fmt: Format, given: dict[str, Any]) -> None:
    call = given["api_returned"]["tool_calls"][0]
    native, grammar = section(fmt, ("functions.f:0", '{"x": 1}')), count(fmt, '[{"name": "f", "parameters": {"x": 1}}]')

    assert (15, 16) == (native, grammar)
    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", None), 2 + 1 + grammar, **called(call)))


def a_singular_marker(fmt: Format, given: dict[str, Any]) -> None:
    row = told(fmt, ("r", given["content"]), 1 + 1 + 8 + 1)

    assert isinstance(row, TokenRow)
    assert tuple(given["singular_ids"]) == row.output_ids[2:-1]
    assert given["plural_ids"] == fmt.tokenizer.encode_prompt("<|tool_calls_section_begin|>")


def a_section_as_reasoning(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, "Look first.") + section(fmt, ("functions.f:0", '{"x": 1}')) + 1

    assert Reason.COUNT_MISMATCH is reason(told(fmt, (given["reasoning"], given["content"]), emitted))


# Incomplete answers


def a_native_reason_that_says_more(fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.FINISH_CONTRADICTS is reason(told(fmt, ("r", "x"), 4, **given))


def cut_rows_are_said_to_be_cut(fmt: Format, given: dict[str, Any]) -> None:
    ends = []
    for row in given["rows"]:
        whole = row["finish_reason"] == "stop"
        rebuilt = told(fmt, ("r", "Yes"), 3 + whole, finish_reason=row["finish_reason"], native_finish_reason=None)
        assert isinstance(rebuilt, TokenRow)
        ends.append((rebuilt.spans[-1].kind is SpanKind.END, fmt.end_id in rebuilt.output_ids))

    assert [(False, False), (True, True)] == ends


def billed_and_empty(fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.EMPTY_ANSWER is reason(told(fmt, (None, ""), given["usage"]["completion_tokens"]))


def white_space_to_the_limit(fmt: Format, given: dict[str, Any]) -> None:
    row = told(fmt, (None, given["content"]), given["usage"]["completion_tokens"], **LENGTH)

    assert Reason.COUNT_MISMATCH is reason(row)


def a_filtered_answer(fmt: Format, given: dict[str, Any]) -> None:
    row = told(fmt, ("r", "x"), 4, finish_reason=given["cache"]["finish_reason"], native_finish_reason=None)

    assert Reason.FINISH_UNKNOWN is reason(row)


def words_that_a_stream_lost(fmt: Format, given: dict[str, Any]) -> None:
    emitted = count(fmt, "r", given["nonstream_text"]) + 2

    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", given["stream_text"]), emitted))
    assert isinstance(told(fmt, ("r", given["nonstream_text"]), emitted), TokenRow)


# Characters and splits


def a_sampled_replacement_character(fmt: Format, given: dict[str, Any]) -> None:
    """Text and count agree and are wrong: the limit that `counted` states. No stronger evidence is ever given."""
    row = told(fmt, ("r", given["api_text"]), 1 + 1 + given["usage"]["completion_tokens"] + 1)
    assert isinstance(row, TokenRow)
    assert Evidence.COUNTED is row.evidence

    ids = (*row.output_ids[:-1], *fmt.tokenizer.encode("\ufffd"), fmt.end_id)
    assert Reason.IDS_CONTRADICT is reason(told(fmt, ("r", given["api_text"]), len(ids) - 1, token_ids=ids))


def another_normal_form(fmt: Format, given: dict[str, Any]) -> None:
    nfd, nfc = given["text_nfd"], given["text_nfc"]

    assert ([66, 6748, 37484], [122583, 1941]) == (fmt.tokenizer.encode(nfd), fmt.tokenizer.encode(nfc))
    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", nfc), 1 + 1 + 3 + 1))


def marks_at_the_edge(fmt: Format, given: dict[str, Any]) -> None:
    for text, ids in ((given["content"], (31384, 9663)), (given["content2"], (14224, 33845))):
        row = told(fmt, ("r", text), 1 + 1 + 2 + 1)
        assert isinstance(row, TokenRow)
        assert ids == row.output_ids[2:-1]


def a_split_that_no_tokenizer_makes(fmt: Format, given: dict[str, Any]) -> None:
    assert given["ids_a"] == fmt.tokenizer.encode(given["text"])
    assert given["text"].encode() == fmt.tokenizer.decode_bytes(given["ids_b"])
    assert Reason.COUNT_MISMATCH is reason(told(fmt, ("r", given["text"]), 1 + 1 + len(given["ids_b"]) + 1))


def reasoning_left_out_of_the_count(fmt: Format, given: dict[str, Any]) -> None:
    reasoning = "word " * (given["usage"]["completion_tokens_details"]["reasoning_tokens"] - 1)
    row = told(fmt, (reasoning, "x"), given["usage"]["completion_tokens"])

    assert Reason.COUNT_MISMATCH is reason(row)


def another_end_token(fmt: Format, given: dict[str, Any]) -> None:
    ids = (81, 163607, 87, 163585)

    config = json.loads((fmt.tokenizer.directory / "config.json").read_text())
    ends = [found for found in (config, config.get("text_config") or {}) if "eos_token_id" in found]

    assert given["append"] == "tokenizer.eos_token_id"
    assert [163586] * len(ends) == [found["eos_token_id"] for found in ends]
    assert (163586, 163585) == (fmt.end_id, fmt.tokenizer.id_of("[EOS]"))
    assert Reason.LAYOUT_INVALID is reason(told(fmt, ("r", "x"), 4, token_ids=ids))


def a_quoted_end_token(fmt: Format, given: dict[str, Any]) -> None:
    said = given["assistant"].split("</think>")[1]
    emitted = count(fmt, "a", said) + 2
    row = told(fmt, ("a", said), emitted)

    assert isinstance(row, TokenRow)
    assert 1 == row.output_ids.count(163586)
    assert (emitted - 1, emitted) == (row.spans[-1].start, row.spans[-1].stop)


def a_mask_over_all_that_was_emitted(fmt: Format, given: dict[str, Any]) -> None:
    reasoning, content = given["completion"].removesuffix("<|im_end|>").split("</think>")
    row = told(fmt, (reasoning, content), count(fmt, reasoning, content) + 2)

    assert isinstance(row, TokenRow)
    assert ["reasoning", "think_close", "content", "end"] == [span.kind for span in row.spans]
    assert 0 == row.spans[0].start
    assert len(row.output_ids) == row.spans[-1].stop


CASES: Mapping[str, Case] = {
    "F001": spaces_round_added_tokens, "F002": spaces_inside_a_section, "F003": a_parser_that_strips,
    "F004": two_pools_of_one_provider, "F005": content_from_two_places, "F007": text_after_the_section,
    "F008": two_sections, "F009": no_closing_tag_before_the_tools, "F011": all_reasoning_as_content,
    "F012": a_quoted_closing_tag, "F015": thinking_inlined_though_it_was_off, "F016": a_switch_that_is_ignored,
    "F018": a_foreign_thinking_token, "F019": a_renumbered_index, "F024": arguments_cut_by_a_shared_delta,
    "F026": an_end_token_inside_the_section, "F027": markers_in_the_reasoning, "F029": compact_arguments,
    "F034": stripped_arguments, "F056": words_that_a_stream_lost, "F057": a_cut_that_says_tool_calls,
    "F058": cut_rows_are_said_to_be_cut, "F059": a_native_reason_that_says_more,
    "F061": a_sampled_replacement_character, "F066": another_normal_form, "F068": marks_at_the_edge,
    "F080": another_end_token, "F082": a_split_that_no_tokenizer_makes, "F103": a_mask_over_all_that_was_emitted,
    "F110": reasoning_left_out_of_the_count, "F113": billed_and_empty, "F115": a_filtered_answer,
    "F150": a_quoted_end_token, "F155": json_in_place_of_native_calls, "F156": white_space_to_the_limit,
    "F157": a_grammar_that_forbids_the_closing_tag, "F159": cut_reasoning_as_content,
    "F160": words_before_the_closing_tag, "F162": a_singular_marker, "F163": a_section_as_reasoning,
    "F173": words_that_a_stream_lost,
}  # fmt: skip


@pytest.mark.parametrize("identity", sorted(CASES))
def test_report(identity: str, kimi_format: Format, reports: Mapping[str, dict[str, Any]]) -> None:
    CASES[identity](kimi_format, reports[identity]["minimal_input"])
