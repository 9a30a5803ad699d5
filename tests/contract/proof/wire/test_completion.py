"""Bodies and streams as providers send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.proof.wire.completion import completion_of_body, completion_of_json, completion_of_sse
from pipeline.proof.wire.sse import sse_data
from pipeline.records import Delta, Reason, RefusedError, ToolCall, Usage

pytestmark = pytest.mark.contract


def body(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    message = {"role": "assistant", "content": "Hi", "reasoning": "So", "refusal": None}
    choice = {"index": 0, "finish_reason": "stop", "native_finish_reason": "stop", "logprobs": None, "message": message}
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.001}
    whole = {"id": "gen-1", "provider": "Chutes", "model": "m", "choices": [choice], "usage": usage}
    return {**whole, **changes}


def chunk(delta: dict[str, Any] | None = None, **changes: Any) -> str:  # noqa: ANN401 — any JSON
    choice = {"index": 0, "delta": delta or {}, "finish_reason": changes.pop("finish_reason", None)}
    whole = {"id": "gen-1", "provider": "Chutes", "model": "m", "choices": [choice], **changes}
    return f"data: {json.dumps(whole)}\n\n"


FINISH = chunk({"content": ""}, finish_reason="stop")
DONE = "data: [DONE]\n\n"


def refusal(raw: object) -> Reason:
    with pytest.raises(RefusedError) as refused:
        completion_of_sse(raw) if isinstance(raw, str) else completion_of_body(raw)  # type: ignore[arg-type]

    return refused.value.refusal.reason


# Bodies


def test_a_body_is_read_field_by_field() -> None:
    completion = completion_of_body(body())

    assert ("So", "Hi") == (completion.reasoning, completion.content)
    assert ("stop", "stop") == (completion.finish_reason, completion.native_finish_reason)
    assert Usage(9, 4, 0.001) == completion.usage
    assert ("Chutes", "m", "gen-1") == (completion.provider, completion.model, completion.generation_id)
    assert completion.deltas is None


def test_keep_alive_white_space_before_a_body_is_no_part_of_it() -> None:
    assert "Hi" == completion_of_json(b"\n         \n\n" + json.dumps(body()).encode()).content


def test_status_200_with_an_error_is_an_upstream_error() -> None:
    """Status 200 with an error and no choices is an upstream error."""
    assert Reason.UPSTREAM_ERROR is refusal(
        {"error": {"code": 502, "message": "Provider returned error"}, "user_id": "u"}
    )


@pytest.mark.parametrize("choices", [None, [], [None]], ids=["null", "empty", "null in it"])
def test_no_choice_is_an_empty_answer(choices: object) -> None:
    assert Reason.EMPTY_ANSWER is refusal(body(choices=choices))


def test_one_choice_is_asked_for_and_two_are_refused() -> None:
    two = 2 * body()["choices"]
    streamed = json.loads(chunk({"content": "a"}).removeprefix("data: "))
    streamed["choices"] *= 2

    assert Reason.MALFORMED_INPUT is refusal(body(choices=two))
    assert Reason.STREAM_INCONSISTENT is refusal(f"data: {json.dumps(streamed)}\n\n{FINISH}{DONE}")


@pytest.mark.parametrize("value", [[], 7, None, {"choices": [{"message": 3}]}], ids=str)
def test_another_shape_is_refused_and_never_an_exception(value: object) -> None:
    assert refusal(value) in {Reason.MALFORMED_INPUT, Reason.EMPTY_ANSWER}


def test_tool_calls_keep_their_text() -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    whole = body()
    whole["choices"][0]["message"]["tool_calls"] = [call]

    assert (ToolCall("functions.f:0", "f", '{"a":  1}'),) == completion_of_body(whole).tool_calls


@pytest.mark.parametrize("junk", [-1.78, {"content": [], "refusal": []}, None, "x"], ids=str)
def test_logprobs_that_nobody_asked_for_are_none(junk: object) -> None:
    whole = body()
    whole["choices"][0]["logprobs"] = junk

    assert completion_of_body(whole).logprobs is None


def test_returned_ids_are_read_where_vllm_puts_them() -> None:
    whole = body(prompt_token_ids=[1, 2])
    whole["choices"][0]["token_ids"] = [3, 4]
    completion = completion_of_body(whole)

    assert ((1, 2), (3, 4)) == (completion.prompt_ids, completion.token_ids)


def test_reasoning_under_two_names_that_differ_is_refused() -> None:
    whole = body()
    whole["choices"][0]["message"]["reasoning_content"] = "Other"

    assert Reason.STREAM_INCONSISTENT is refusal(whole)


DETAILS = [{"type": "reasoning.text", "text": "So", "format": "unknown", "index": 0}]


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning": "So"},
        {"reasoning_content": "So"},
        {"reasoning_details": DETAILS},
        {"reasoning": "So", "reasoning_content": "So", "reasoning_details": DETAILS},
        {"reasoning": None, "reasoning_content": "So"},
        {"reasoning": "So", "reasoning_details": [{"type": "reasoning.summary", "summary": "x"}]},
    ],
    ids=["new name", "old name", "details alone", "all three", "null beside it", "a summary beside it"],
)
def test_reasoning_is_found_under_each_of_its_names(message: dict[str, Any]) -> None:
    whole = body()
    whole["choices"][0]["message"] = {"content": "Hi", **message}

    assert "So" == completion_of_body(whole).reasoning


def test_details_that_say_something_else_are_refused() -> None:
    whole = body()
    whole["choices"][0]["message"]["reasoning_details"] = [{"type": "reasoning.text", "text": "Other"}]

    assert Reason.STREAM_INCONSISTENT is refusal(whole)


# Streams


def test_a_stream_is_the_text_of_its_deltas_in_order() -> None:
    raw = (
        ": OPENROUTER PROCESSING\n\n"
        + chunk({"reasoning": "So", "content": ""})
        + chunk({"content": " H"})
        + ": OPENROUTER PROCESSING\n\n"
        + chunk({"content": "i "})
        + FINISH
        + chunk({"content": ""}, usage={"prompt_tokens": 9, "completion_tokens": 5})
        + DONE
    )
    completion = completion_of_sse(raw)

    assert ("So", " Hi ") == (completion.reasoning, completion.content)
    assert (Delta("reasoning", "So"), Delta("content", " H"), Delta("content", "i ")) == completion.deltas
    assert Usage(9, 5) == completion.usage


@pytest.mark.parametrize(
    "usage",
    [
        FINISH + chunk({"content": ""}, usage={"prompt_tokens": 9, "completion_tokens": 5}),
        chunk({"content": ""}, finish_reason="stop", usage={"prompt_tokens": 9, "completion_tokens": 5}),
        FINISH + 'data: {"id":"gen-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\n',
    ],
    ids=["own chunk", "with the finish", "no choices"],
)
def test_all_three_forms_of_the_usage_chunk_are_read(usage: str) -> None:
    assert Usage(9, 5) == completion_of_sse(chunk({"content": "a"}) + usage + DONE).usage


@pytest.mark.parametrize(
    "raw",
    [
        "",
        chunk({"content": "a"}),
        chunk({"content": "a"}) + FINISH,
        chunk({"content": "a"}) + DONE,
        FINISH + "data: [DO",
    ],
    ids=["empty", "no finish", "no done", "done without finish", "cut in an event"],
)
def test_a_cut_stream_is_refused(raw: str) -> None:
    assert Reason.STREAM_CUT is refusal(raw)


def test_an_error_in_the_middle_is_refused() -> None:
    """An error in the middle is refused whatever the finish reason says."""
    raw = chunk({"content": "a"}) + chunk({}, finish_reason="stop", error={"code": 502, "message": "x"}) + DONE

    assert Reason.UPSTREAM_ERROR is refusal(raw)


@pytest.mark.parametrize(
    "raw",
    [
        chunk({"content": "a"}) + chunk({"content": "b"}, id="gen-2") + FINISH + DONE,
        chunk({"content": "a"}) + chunk({"content": "b"}, provider="Other") + FINISH + DONE,
        chunk({"content": "a"}) + FINISH + chunk({}, finish_reason="length") + DONE,
        chunk({"content": "a"}) + "data: {not json}\n\n" + FINISH + DONE,
        chunk({"content": "a"}) + FINISH + DONE + chunk({"content": "b"}),
        chunk({"content": "a"}) + chunk({"content": "b"}).replace('"index": 0', '"index": 1') + FINISH + DONE,
        chunk({"content": "a"}) + chunk({"content": "b"}) + FINISH + chunk({"content": "ab"}) + DONE,
    ],
    ids=["two ids", "two providers", "two finishes", "no json", "after done", "another choice", "whole text again"],
)
def test_chunks_that_contradict_each_other_are_refused(raw: str) -> None:
    assert Reason.STREAM_INCONSISTENT is refusal(raw)


@pytest.mark.parametrize("value", [0, False, "", [], 1e-9])
def test_a_delta_or_a_function_of_another_type_is_no_absence(value: object) -> None:
    """Found by the fuzz: `"delta": 1e-400` is 0, and was read as a chunk that says nothing."""
    choice = {"index": 0, "delta": value, "finish_reason": None}
    raw = chunk({"content": "a"}) + chunk(choices=[choice]) + FINISH + DONE
    fragment = {"index": 0, "id": "functions.f:0", "function": value}

    assert Reason.MALFORMED_INPUT is refusal(raw)
    assert Reason.MALFORMED_INPUT is refusal(chunk({"tool_calls": [fragment]}) + FINISH + DONE)


def test_a_boolean_is_no_byte_of_a_token() -> None:
    whole = body()
    whole["choices"][0]["logprobs"] = {"content": [{"token": "a", "bytes": [97, True], "logprob": 0.0}]}
    (entry,) = completion_of_body(whole).logprobs or ()

    assert entry.data is None


def test_two_equal_finish_chunks_are_one() -> None:
    assert "a" == completion_of_sse(chunk({"content": "a"}) + FINISH + FINISH + DONE).content


def test_fragments_of_a_call_are_joined_by_index() -> None:
    first = {"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": ""}}
    raw = (
        chunk({"tool_calls": [first]})
        + chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]})
        + chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]})
        + FINISH
        + DONE
    )

    assert (ToolCall("functions.f:0", "f", '{"a": 1}'),) == completion_of_sse(raw).tool_calls


def test_half_a_surrogate_pair_keeps_its_own_refusal() -> None:
    """Half a surrogate pair in a delta is kept for its own refusal."""
    assert "\ud83d" == completion_of_sse(chunk({"content": "\ud83d"}) + FINISH + DONE).content


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_events_end_as_the_standard_says(end: str) -> None:
    raw = f": c{end}{end}data: a{end}data:b{end}{end}event: x{end}data:  c{end}{end}"

    assert ["a\nb", " c"] == list(sse_data(raw))


def test_text_that_looks_like_an_event_end_inside_json_is_text() -> None:
    """U+2028 and NEL are characters of the text, not ends of lines."""
    raw = 'data: {"a": "x\u2028y\x85z"}\n\n'

    assert ['{"a": "x\u2028y\x85z"}'] == list(sse_data(raw))
