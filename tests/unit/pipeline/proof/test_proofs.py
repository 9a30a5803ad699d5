"""Each proof, and what breaks it: markers, parsed calls, deltas, returned ids, logprobs."""

from __future__ import annotations

from dataclasses import replace

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
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.proof.stream_deltas import crossed_boundary
from pipeline.records import (
    Delta,
    Evidence,
    Json,
    JsonObject,
    Reason,
    TokenLogprob,
    TokenRow,
    ToolCall,
)

# Markers


def test_raw_markers_are_control_tokens_where_the_count_says_so() -> None:
    row = of(answer(content=SECTION, usage=counts(len(REASONING) + len(section_ids()) + 2)))

    assert isinstance(row, TokenRow)
    assert section_ids() == row.output_ids[len(REASONING) + 1 : -1]


def section_ids() -> tuple[int, ...]:
    begin, end, call, argument, stop = FORMAT.tool_markers().values()
    return (begin, call, *ENCODE("functions.f:0"), argument, *ENCODE("{}"), stop, end)


def test_markers_that_were_written_as_text_are_text() -> None:
    row = of(answer(content=SECTION, usage=counts(len(REASONING) + len(ENCODE(SECTION)) + 2)))

    assert isinstance(row, TokenRow)
    assert tuple(ENCODE(SECTION)) == row.output_ids[len(REASONING) + 1 : -1]


def test_markers_on_a_route_that_is_not_proven_to_send_them_leaked() -> None:
    told = answer(content=SECTION, usage=counts(len(REASONING) + len(section_ids()) + 2))

    assert Reason.LEAKED_CONTROL is reason(of(told, route({TraitName.MARKERS: "parsed"})))


def test_a_section_that_is_cut_off_by_an_end_token_is_refused() -> None:
    told = answer(content=SECTION.removesuffix("<|tool_calls_section_end|>"), usage=counts(len(REASONING) + 20))

    assert Reason.COUNT_MISMATCH is reason(of(told))


# Parsed calls


NAMED = '{"a": "x"}'
NAMED_IDS = (*section_ids()[:-4], *ENCODE(NAMED), *section_ids()[-2:])
CALLED = {"finish_reason": "tool_calls", "content": None}


def test_verbatim_calls_prove_their_section() -> None:
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))
    row = of(replace(told, usage=counts(len(REASONING) + len(NAMED_IDS) + 2)))

    assert isinstance(row, TokenRow)
    assert NAMED_IDS == row.output_ids[len(REASONING) + 1 : -1]


@pytest.mark.parametrize("identity", ["call_1", "f:0", "functions.g:0", "functions.f"])
def test_an_id_that_the_model_did_not_write_is_refused(identity: str) -> None:
    told = answer(**CALLED, tool_calls=(ToolCall(identity, "f", "{}"),))

    assert Reason.STRUCTURED_CALLS is reason(of(told))


def test_calls_after_earlier_calls_are_refused() -> None:
    """An engine that numbers by history gives another id than the model wrote."""
    call: Json = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling: JsonObject = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: JsonObject = {"role": "tool", "tool_call_id": "functions.f:0", "content": ""}
    prompt = replace(PROMPT, messages=(*PROMPT.messages, calling, result))
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:1", "f", "{}"),))

    assert Reason.STRUCTURED_CALLS is reason(of(told, prompt=prompt))


@pytest.mark.parametrize("lost", ["Bye.", " "], ids=["text", "a space"])
def test_text_that_a_parser_lost_behind_the_section_shows_in_the_count(lost: str) -> None:
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))
    emitted = len(REASONING) + len(NAMED_IDS) + len(ENCODE(lost)) + 2

    assert Reason.COUNT_MISMATCH is reason(of(replace(told, usage=counts(emitted))))


@pytest.mark.parametrize("more", [-1, 1, 2], ids=str)
def test_markers_that_were_left_out_or_doubled_show_in_the_count(more: int) -> None:
    """An end token inside the section, no `</think>` before it, a second section."""
    told = answer(**CALLED, tool_calls=(ToolCall("functions.f:0", "f", NAMED),))

    assert Reason.COUNT_MISMATCH is reason(of(replace(told, usage=counts(len(REASONING) + len(NAMED_IDS) + 2 + more))))


# Deltas


def deltas(*tokens: int, field: str = "content") -> tuple[Delta, ...]:
    return tuple(Delta(field, FORMAT.tokenizer.decode_text([token])) for token in tokens)  # type: ignore[arg-type]  # a field's name


def split_once(ids: list[int]) -> list[int]:
    """The same bytes with the first long token as two."""
    at, data = next((i, d) for i, token in enumerate(ids) if len(d := FORMAT.tokenizer.token_bytes(token)) > 1)
    halves = [FORMAT.tokenizer.id_of_bytes(half) for half in (data[:1], data[1:])]
    assert None not in halves
    return [*ids[:at], *[half for half in halves if half is not None], *ids[at + 1 :]]


def test_deltas_prove_a_split_that_no_tokenizer_would_make() -> None:
    odd = split_once(REASONING)
    assert odd != REASONING
    streamed = answer(
        deltas=(*deltas(*odd, field="reasoning"), *deltas(*CONTENT)), usage=counts(len(odd) + len(CONTENT) + 2)
    )
    row = of(streamed)

    assert isinstance(row, TokenRow)
    assert (Evidence.STREAM_DELTAS, (*odd, CLOSE, *CONTENT, END)) == (row.evidence, row.output_ids)


def test_a_batch_of_tokens_leaves_the_count_to_prove_them() -> None:
    streamed = answer(deltas=(Delta("reasoning", "So it is."), *deltas(*CONTENT)))
    row = of(streamed)

    assert isinstance(row, TokenRow)
    assert (Evidence.COUNTED, WHOLE) == (row.evidence, row.output_ids)


def test_a_delta_that_ends_inside_a_rebuilt_token_is_a_contradiction() -> None:
    """The same count, but not the same tokens: one was split and others were joined."""
    text = "So it is."
    inside = next(at for at in range(1, len(text)) if crosses(text[:at]))
    streamed = answer(deltas=(Delta("reasoning", text[:inside]), Delta("reasoning", text[inside:]), *deltas(*CONTENT)))

    assert Reason.DELTAS_CONTRADICT is reason(of(streamed))


def crosses(start: str) -> bool:
    """Whether a delta of just this start would end inside one of the reasoning's tokens."""
    return crossed_boundary(FORMAT.tokenizer, REASONING, [start]) is not None


def test_content_before_reasoning_is_no_layout() -> None:
    streamed = answer(deltas=(*deltas(*CONTENT), *deltas(*REASONING, field="reasoning")))

    assert Reason.LAYOUT_INVALID is reason(of(streamed))


# Ids and logprobs


def test_returned_ids_are_used_without_a_fingerprint() -> None:
    told = answer(token_ids=WHOLE, prompt_ids=PROMPT_IDS)
    row = reconstruct(PROMPT, told, FORMAT, None)

    assert isinstance(row, TokenRow)
    assert (Evidence.ENGINE_IDS, WHOLE) == (row.evidence, row.output_ids)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"token_ids": WHOLE[:-1]}, Reason.IDS_CONTRADICT),
        ({"token_ids": (*REASONING, CLOSE, *ENCODE(" No."), END)}, Reason.IDS_CONTRADICT),
        ({"token_ids": (*WHOLE[:-1], END, END)}, Reason.LAYOUT_INVALID),
        ({"token_ids": ()}, Reason.IDS_CONTRADICT),
        ({"token_ids": WHOLE, "prompt_ids": PROMPT_IDS[:-1]}, Reason.PROMPT_MISMATCH),
        ({"token_ids": (*WHOLE[:-1], 10**9, END)}, Reason.LAYOUT_INVALID),
    ],
    ids=["no end", "other text", "two ends", "none", "other prompt", "no token"],
)
def test_returned_ids_that_do_not_say_what_the_text_says_are_refused(
    changes: dict[str, object], expected: Reason
) -> None:
    assert expected is reason(of(answer(**changes)))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"usage": counts(len(WHOLE) + 1)}, Reason.IDS_CONTRADICT),
        ({"usage": counts(len(WHOLE) - 1)}, Reason.IDS_CONTRADICT),
        ({"usage": None}, Reason.USAGE_MISSING),
        ({"usage": counts(None)}, Reason.USAGE_MISSING),
        (
            {"finish_reason": "tool_calls", "tool_calls": (ToolCall("functions.f:0", "f", "{}"),)},
            Reason.IDS_CONTRADICT,
        ),
    ],
    ids=["some are missing", "too many", "no usage", "no count", "calls without a section"],
)
def test_returned_ids_are_believed_only_if_they_are_as_many_as_were_counted(
    changes: dict[str, object], expected: Reason
) -> None:
    told = answer(**{"token_ids": WHOLE, "prompt_ids": PROMPT_IDS, **changes})

    assert expected is reason(reconstruct(PROMPT, told, FORMAT, None))
    assert expected is reason(of(told))


def test_ids_of_a_route_that_does_not_count_its_control_tokens_are_as_many_more() -> None:
    quiet = route({TraitName.END_COUNTED: False, TraitName.THINK_CLOSE_COUNTED: False})
    told = answer(token_ids=WHOLE, prompt_ids=PROMPT_IDS, usage=counts(len(WHOLE) - 2))

    assert isinstance(of(told, quiet), TokenRow)
    assert Reason.IDS_CONTRADICT is reason(reconstruct(PROMPT, told, FORMAT, None))


def test_where_no_count_says_that_all_ids_came_parsed_calls_are_refused() -> None:
    calls = (ToolCall("functions.f:0", "f", "{}"),)
    ids = (*REASONING, CLOSE, *section_ids(), END)
    told = answer(**CALLED, tool_calls=calls, token_ids=ids, prompt_ids=PROMPT_IDS, usage=counts(len(ids)))

    assert isinstance(of(told), TokenRow)
    assert Reason.COUNT_NOT_NATIVE is reason(of(told, route({TraitName.COUNT_NATIVE: False})))


def listed(*tokens: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob("", FORMAT.tokenizer.token_bytes(token)) for token in tokens)


def test_logprobs_prove_the_ids_of_their_bytes_even_where_white_space_is_stripped() -> None:
    told = answer(content="Yes.", logprobs=listed(*WHOLE))
    row = of(told, route({TraitName.SEAM: "stripped"}))

    assert isinstance(row, TokenRow)
    assert (Evidence.LOGPROBS, WHOLE) == (row.evidence, row.output_ids)


@pytest.mark.parametrize(
    "logprobs, expected",
    [
        (listed(*WHOLE[:-1]), Reason.LOGPROBS_HOLE),
        ((*listed(*WHOLE[:-2]), TokenLogprob(".", None), *listed(END)), Reason.LOGPROBS_HOLE),
        ((TokenLogprob("", b"So it is."), *listed(*WHOLE[len(REASONING) :])), Reason.LOGPROBS_HOLE),
        (listed(*REASONING, CLOSE, *ENCODE(" No."), END), Reason.LOGPROBS_CONTRADICT),
        (listed(*split_once(REASONING), *WHOLE[len(REASONING) :]), Reason.LOGPROBS_CONTRADICT),
    ],
    ids=["no end", "no bytes", "no single token", "other text", "other count"],
)
def test_logprobs_with_holes_or_another_text_are_refused(logprobs: tuple[TokenLogprob, ...], expected: Reason) -> None:
    assert expected is reason(of(answer(logprobs=logprobs)))
