"""Answers that look like proven ones and are not: each differs from an accepted twin by what it leaves open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.answers import (
    CLOSE,
    CONTENT,
    ENCODE,
    END,
    FORMAT,
    PROMPT,
    PROMPT_IDS,
    REASONING,
    SECTION,
    WHOLE,
    answer,
    counts,
    of,
    reason,
    route,
)
from pipeline.base.json_lines import object_of
from pipeline.proof.fingerprint import FingerprintError, Trait, TraitName, read_fingerprints
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import (
    Completion,
    Delta,
    Evidence,
    Json,
    Reason,
    Refusal,
    RefusedError,
    TokenLogprob,
    TokenRow,
    ToolCall,
    Usage,
)

pytestmark = pytest.mark.contract

CALL = ToolCall("functions.f:0", "f", '{"a": 1}')
BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT, CALL_END = FORMAT.tool_markers().values()
NAMED = (BEGIN, CALL_BEGIN, *ENCODE(CALL.id), ARGUMENT, *ENCODE(CALL.arguments), CALL_END, SECTION_END)
CALLING = (*REASONING, CLOSE, *NAMED, END)


def bare(*, streamed: bool) -> Completion:
    """No reasoning, though thinking is on: one more token than the text and the end token."""
    pieces = tuple(Delta("content", FORMAT.tokenizer.decode_text([token])) for token in CONTENT)
    deltas = pieces if streamed else None
    return answer(reasoning=None, usage=counts(len(CONTENT) + 2), deltas=deltas)


# Where the thinking ended


@pytest.mark.parametrize("unclosed", ["reasoning", "content", None])
@pytest.mark.parametrize("streamed", [False, True])
def test_content_alone_hides_where_thinking_was_closed(unclosed: str | None, streamed: bool) -> None:
    """A parser that failed shows thinking and answer as content, whatever the route shows otherwise."""
    fingerprint = route({TraitName.UNCLOSED: unclosed}, stream=streamed)

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(bare(streamed=streamed), fingerprint))


# Cuts


def test_a_parser_holds_back_what_a_cut_section_ended_with() -> None:
    told = answer(content=None, tool_calls=(CALL,), finish_reason="length", native_finish_reason="length")

    assert Reason.STRUCTURED_CALLS is reason(of(replace(told, usage=counts(len(CALLING) - 1))))


@pytest.mark.parametrize("arguments", ['{"a": 1', " ", "[1]", "7", '{"a": 1}{'], ids=str)
def test_arguments_that_are_no_whole_object_hide_a_cut(arguments: str) -> None:
    told = answer(content=None, tool_calls=(replace(CALL, arguments=arguments),), finish_reason="tool_calls")

    assert Reason.FINISH_CONTRADICTS is reason(of(told))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "finish, limit, end_counted, expected",
    [
        ("stop", len(WHOLE) - 1, False, Reason.AMBIGUOUS_LAYOUT),
        ("stop", len(WHOLE) - 1, True, Reason.FINISH_CONTRADICTS),
        ("length", 500, True, Reason.FINISH_CONTRADICTS),
    ],
    ids=["end not counted", "past the limit", "before the limit"],
)
def test_the_limit_is_held_against_every_proof(
    finish: str, limit: int, end_counted: bool, expected: Reason, streamed: bool
) -> None:
    pieces = [("reasoning", token) for token in REASONING] + [("content", token) for token in CONTENT]
    deltas = tuple(Delta(name, FORMAT.tokenizer.decode_text([token])) for name, token in pieces)  # type: ignore[arg-type]  # a field's name
    total = len(WHOLE) - (finish == "length" or not end_counted)
    told = answer(
        finish_reason=finish, native_finish_reason=finish, usage=counts(total), deltas=deltas if streamed else None
    )
    known = route({TraitName.END_COUNTED: end_counted}, stream=streamed)

    assert expected is reason(reconstruct(PROMPT, told, FORMAT, known, Expected(max_tokens=limit)))


def test_a_sections_end_token_has_its_own_trait_at_the_limit() -> None:
    """The end token of a section has a trait of its own at the limit."""
    told = answer(
        content=SECTION, usage=counts(len(REASONING) + 5 + len(ENCODE("functions.f:0")) + len(ENCODE("{}")) + 1)
    )
    known = route({TraitName.END_COUNTED_TOOLS: False})
    total = told.usage.completion_tokens if told.usage else None

    assert isinstance(of(told, known), TokenRow)
    assert Reason.AMBIGUOUS_LAYOUT is reason(reconstruct(PROMPT, told, FORMAT, known, Expected(max_tokens=total)))


# Ids against what was shown


@pytest.mark.parametrize(
    "calls, ids",
    [
        ((CALL,), (*REASONING, CLOSE, END)),
        ((replace(CALL, name="g"),), CALLING),
        ((replace(CALL, arguments='{"a": 2}'),), CALLING),
        ((CALL, CALL), CALLING),
    ],
    ids=["no section", "other name", "other arguments", "one too many"],
)
@pytest.mark.parametrize("as_logprobs", [False, True])
def test_ids_that_do_not_hold_the_calls_shown_are_refused(
    calls: tuple[ToolCall, ...], ids: tuple[int, ...], as_logprobs: bool
) -> None:
    told = answer(content=None, tool_calls=calls, finish_reason="tool_calls", usage=counts(len(ids)))
    listed = tuple(TokenLogprob("", FORMAT.tokenizer.token_bytes(token)) for token in ids)
    given = replace(told, logprobs=listed) if as_logprobs else replace(told, token_ids=ids)

    assert reason(of(given)) in {Reason.IDS_CONTRADICT, Reason.LOGPROBS_CONTRADICT}


def test_names_and_spacing_of_calls_are_free_where_ids_came() -> None:
    """How a provider names and writes a call is its own affair where ids are given."""
    call = ToolCall("call_7", "f", '{"a":1}')
    told = answer(content=None, tool_calls=(call,), finish_reason="tool_calls", usage=counts(len(CALLING)))

    assert isinstance(of(replace(told, token_ids=CALLING)), TokenRow)


@pytest.mark.parametrize("off", [-2, 1, 95])
def test_ids_are_as_many_as_were_counted(off: int) -> None:
    ids = answer(token_ids=WHOLE, usage=counts(len(WHOLE) + off))
    listed = tuple(TokenLogprob("", FORMAT.tokenizer.token_bytes(token)) for token in WHOLE)

    assert Reason.IDS_CONTRADICT is reason(of(ids))
    assert Reason.IDS_CONTRADICT is reason(reconstruct(PROMPT, ids, FORMAT, None))
    assert Reason.LOGPROBS_CONTRADICT is reason(of(replace(ids, token_ids=None, logprobs=listed)))


def test_no_ids_are_no_evidence() -> None:
    body: dict[str, Json] = {
        "choices": [{"message": {"content": "x"}, "finish_reason": "length", "token_ids": []}],
        "usage": {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": 0},
    }

    assert completion_of_body(body).token_ids is None


# Deltas


def test_a_space_before_a_marker_may_hide_half_a_character() -> None:
    """This vocabulary has a token of a space and the first bytes of an emoji, which a server would hold back."""
    names = [FORMAT.tokenizer.name_of(token) or "" for token in (BEGIN, CALL_BEGIN)]
    pieces = ["x", " ", *names]
    deltas = tuple(Delta("content", text) for text in pieces)
    told = answer(
        reasoning="So it is.",
        content="".join(pieces),
        finish_reason="length",
        native_finish_reason="length",
        deltas=(*(Delta("reasoning", FORMAT.tokenizer.decode_text([token])) for token in REASONING), *deltas),
        usage=counts(len(REASONING) + 1 + 4),
    )
    row = of(told)

    assert isinstance(row, Refusal) or row.evidence is Evidence.COUNTED


def test_a_call_without_arguments_has_its_place_in_the_stream() -> None:
    first: Json = {"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": ""}}
    chunks: list[dict[str, Json]] = [
        {"delta": {"tool_calls": [first]}, "finish_reason": None},
        {"delta": {"content": "Done"}, "finish_reason": None},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    raw = "".join(f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    assert (Delta("tool_calls", ""), Delta("content", "Done")) == completion_of_sse(raw).deltas


# The wire


@pytest.mark.parametrize(
    "message, expected",
    [
        ({"content": "x", "reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "text": "b"}]},
         Reason.STREAM_INCONSISTENT),
        ({"content": "x", "refusal": "I cannot."}, Reason.UPSTREAM_ERROR),
        ({"content": None, "function_call": {"name": "f"}}, Reason.CALLS_LOST),
    ],
    ids=["details differ", "refusal", "old call"],
)  # fmt: skip
def test_unread_parts_of_an_answer_are_refused(message: Json, expected: Reason) -> None:
    """What stands beside the fields that are read is not lost without a word."""
    with pytest.raises(RefusedError) as refused:
        completion_of_body({"choices": [{"message": message, "finish_reason": "stop"}]})

    assert expected is refused.value.refusal.reason


def test_the_reasoning_field_that_is_not_empty_is_read() -> None:
    message: Json = {"content": "x", "reasoning": "", "reasoning_content": "t"}

    assert "t" == completion_of_body({"choices": [{"message": message, "finish_reason": "stop"}]}).reasoning


def test_numbers_that_no_float_holds_are_absent() -> None:
    body: dict[str, Json] = {
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 10**400},
    }

    assert Usage(1, 1, None) == completion_of_body(body).usage


def test_a_stream_saved_without_its_last_line_end_is_whole() -> None:
    chunk = '{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}'

    assert "a" == completion_of_sse(f'data: {chunk}\n\ndata: {{"choices":[],"usage":{{}}}}\n\ndata: [DONE]').content


# Lines


def test_a_key_that_stands_twice_is_refused_however_it_is_spaced() -> None:
    with pytest.raises(RefusedError):
        object_of(b'{"content":"Bad","content" :"Hi"}')


def test_whole_numbers_keep_their_digits() -> None:
    assert {"maximum": 18446744073709551616} == object_of(b'{"maximum":18446744073709551616}')
    assert {"a": [2**64, 1.5]} == object_of(b'{"a":[18446744073709551616,1.5]}')


# Fingerprints


@pytest.mark.parametrize(
    "trait, value",
    [("end_token_counted", '"false"'), ("seam_space", '"mostly"'), ("prompt_prefix", '"[BOS]"'), ("deltas", "true")],
)
def test_a_proven_trait_has_a_value_of_its_kind(tmp_path: Path, trait: str, value: str) -> None:
    path = tmp_path / "f.jsonl"
    head = '{"provider":"P","model":"m","stream":false,"n":50,"proven":true,"trait":'
    path.write_text(f'{head}"{trait}","value":{value}}}\n')

    with pytest.raises(FingerprintError, match="cannot be"):
        read_fingerprints(path)


def test_a_prefix_that_is_not_proven_is_an_unproven_route() -> None:
    traits = {**route().traits, TraitName.PROMPT_PREFIX: Trait([], 3, proven=False)}

    assert Reason.ROUTE_UNPROVEN is reason(of(answer(), replace(route(), traits=traits)))


def test_a_prefix_that_names_no_token_is_an_unproven_route() -> None:
    assert Reason.ROUTE_UNPROVEN is reason(of(answer(), route({TraitName.PROMPT_PREFIX: ["[NOTHING]"]})))
