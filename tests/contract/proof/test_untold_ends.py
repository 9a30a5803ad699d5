"""Answers whose text and count are those of a proven one, though they ended, or closed their thinking, otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.fixtures.answers import (
    CLOSE,
    CONTENT,
    ENCODE,
    END,
    FORMAT,
    PROMPT,
    REASONING,
    SECTION,
    WHOLE,
    answer,
    counts,
    of,
    reason,
    route,
)
from harness.views.roundtrip import true_fingerprint
from harness.views.view import PROFILES
from pipeline.cli.reconstruct import rebuilt
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import Completion, Delta, Evidence, Json, Reason, RefusedError, TokenRow, ToolCall

pytestmark = pytest.mark.contract

QUIET_CLOSE = {TraitName.THINK_CLOSE_COUNTED: False}
QUIET_END = {TraitName.END_COUNTED: False}
CALLED = {"finish_reason": "tool_calls", "content": None}
SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT, CALL_END = FORMAT.tool_markers().values()


def deltas(field: str, *tokens: int) -> tuple[Delta, ...]:
    names = (FORMAT.tokenizer.name_of(token) or FORMAT.tokenizer.decode_text([token]) for token in tokens)
    return tuple(Delta(field, text) for text in names)  # type: ignore[arg-type]  # one of the three names


# A stop text


def test_an_answer_that_natively_ended_on_a_stop_text_is_refused() -> None:
    assert Reason.FINISH_CONTRADICTS is reason(of(answer(native_finish_reason="stop_sequence")))


@pytest.mark.parametrize("key", ["stop_reason", "matched_stop"])
@pytest.mark.parametrize(
    "value, expected",
    [("\n\n", Reason.FINISH_CONTRADICTS), ("", Reason.FINISH_CONTRADICTS), (CLOSE, Reason.FINISH_CONTRADICTS),
     (END, None), (None, None)],
    ids=["text", "empty text", "another token", "its end token", "null"],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_what_an_engine_says_that_stopped_it_is_its_end_token(
    key: str, value: Json, expected: Reason | None, streamed: bool
) -> None:
    message: dict[str, Json] = {"reasoning": "So it is.", "content": " Yes."}
    choice: dict[str, Json] = {"delta" if streamed else "message": message, "finish_reason": "stop", key: value}
    usage: dict[str, Json] = {"prompt_tokens": of_prompt(), "completion_tokens": len(WHOLE)}
    body: dict[str, Json] = {"provider": "P", "model": "m", "choices": [choice], "usage": usage}
    events = f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n"
    told = completion_of_sse(events) if streamed else completion_of_body(body)

    row = of(told, route({TraitName.DELTAS: "rechunked"}, stream=streamed))

    assert expected is (None if isinstance(row, TokenRow) else row.reason)


def of_prompt() -> int:
    return len(FORMAT.render(PROMPT))


def test_an_answer_that_was_cut_was_not_stopped_by_a_token() -> None:
    cut = answer(finish_reason="length", native_finish_reason="length", usage=counts(len(WHOLE) - 1))

    assert isinstance(of(cut), TokenRow)
    assert Reason.FINISH_CONTRADICTS is reason(of(replace(cut, stopped_by=CONTENT[-1])))


@pytest.mark.parametrize("value", [True, 1.5, [1]], ids=str)
def test_a_stop_reason_of_another_kind_is_malformed(value: Json) -> None:
    with pytest.raises(RefusedError) as refused:
        completion_of_body({"choices": [{"message": {"content": "x"}, "stop_reason": value}]})

    assert Reason.MALFORMED_INPUT is refused.value.refusal.reason


@pytest.mark.parametrize(
    "stop, expected",
    [(["\n\n"], "finish_unknown"), ("x", "finish_unknown"), (None, None), ([], None), (5, "malformed_input")],
    ids=str,
)
def test_a_possible_stop_text_is_refused(stop: Json, expected: str | None) -> None:
    """A line whose stop texts may have ended the answer is refused."""
    usage: Json = {"prompt_tokens": of_prompt(), "completion_tokens": len(WHOLE) - 1}
    choice: Json = {
        "message": {"reasoning": "So it is.", "content": " Yes."},
        "finish_reason": "stop",
        "native_finish_reason": "stop",
    }
    known = true_fingerprint(PROFILES["siliconflow"], stream=False)
    body: Json = {"provider": known.provider, "model": known.model, "choices": [choice], "usage": usage}
    prompt: Json = {"messages": [{"role": "user", "content": "hi"}]}
    line = json.dumps({"id": "r", "prompt": prompt, "response": body, "stop": stop}).encode()

    (result,) = rebuilt([line], FORMAT, [known])

    assert (expected, expected is None) == (result.get("reason"), result["status"] == "accepted")


# Thinking that no count tells of


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_a_section_may_end_an_unclosed_thinking(streamed: bool) -> None:
    """A section may have ended a thinking that was never closed."""
    section = (
        *(SECTION_BEGIN, CALL_BEGIN, *ENCODE("functions.f:0"), ARGUMENT),
        *(*ENCODE("{}"), CALL_END, SECTION_END),
    )
    pieces = (*deltas("reasoning", *REASONING), *deltas("content", *section)) if streamed else None
    told = answer(content=SECTION, usage=counts(len(REASONING) + len(section) + 1), deltas=pieces)

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(told, route(QUIET_CLOSE, stream=streamed)))


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_an_answer_without_reasoning_may_never_have_thought(streamed: bool) -> None:
    told = answer(
        reasoning=None, usage=counts(len(CONTENT) + 1), deltas=deltas("content", *CONTENT) if streamed else None
    )

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(told, route(QUIET_CLOSE, stream=streamed)))


def test_a_cut_behind_the_reasoning_may_have_closed_it() -> None:
    cut: dict[str, object] = {"content": None, "finish_reason": "length", "native_finish_reason": "length"}
    told = answer(**cut, usage=counts(len(REASONING)), deltas=deltas("reasoning", *REASONING))

    assert isinstance(of(told), TokenRow)
    assert Reason.AMBIGUOUS_LAYOUT is reason(of(told, route(QUIET_CLOSE, stream=True)))


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_text_on_both_sides_tells_that_the_thinking_was_closed(streamed: bool) -> None:
    pieces = (*deltas("reasoning", *REASONING), *deltas("content", *CONTENT)) if streamed else None
    row = of(answer(usage=counts(len(WHOLE) - 1), deltas=pieces), route(QUIET_CLOSE, stream=streamed))

    assert isinstance(row, TokenRow)
    assert WHOLE == row.output_ids


# A cut that calls itself a stop


@pytest.mark.parametrize(
    "native, limit, expected",
    [(None, None, Reason.FINISH_UNKNOWN), ("stop", None, None), ("STOP", None, None), (None, 500, None)],
    ids=["nothing known", "native stop", "native STOP", "the limit"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_an_uncounted_end_needs_the_limit_or_native_finish(
    native: str | None, limit: int | None, expected: Reason | None, streamed: bool
) -> None:
    """An end that is not counted is told by the limit or natively."""
    pieces = (*deltas("reasoning", *REASONING), *deltas("content", *CONTENT)) if streamed else None
    told = answer(native_finish_reason=native, usage=counts(len(WHOLE) - 1), deltas=pieces)

    row = reconstruct(PROMPT, told, FORMAT, route(QUIET_END, stream=streamed), Expected(max_tokens=limit))

    assert expected is (None if isinstance(row, TokenRow) else row.reason)


def test_an_end_that_is_counted_needs_no_native_reason() -> None:
    assert isinstance(of(answer(native_finish_reason=None)), TokenRow)


# Parsed calls


def called(content: str | None, *calls: ToolCall) -> Completion:
    length = sum(len(ENCODE(call.id)) + len(ENCODE(call.arguments)) + 3 for call in calls)
    total = len(REASONING) + 1 + len(ENCODE(content or "")) + length + 3
    return answer(**{**CALLED, "content": content}, tool_calls=calls, usage=counts(total))


PLAIN = ToolCall("functions.f:0", "f", '{"a": "x"}')


def test_a_call_is_proven_where_id_and_arguments_are_kept() -> None:
    """One call is proven where the route keeps its id and arguments."""
    row = of(called(None, PLAIN))

    assert isinstance(row, TokenRow)
    assert Evidence.COUNTED is row.evidence
