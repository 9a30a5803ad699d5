"""Returned ids and logprobs, held to text, count and calls."""

from __future__ import annotations

import pytest

from harness.fixtures.answer_parts import CALLED, section_ids, split_once
from harness.fixtures.answers import (
    CLOSE,
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
from pipeline.records import (
    Evidence,
    Reason,
    Refusal,
    TokenLogprob,
    TokenRow,
    ToolCall,
)

pytestmark = pytest.mark.contract

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
        ({"token_ids": WHOLE[:-1], "usage": counts(len(WHOLE) - 1)}, Reason.IDS_CONTRADICT),
        ({"token_ids": WHOLE, "finish_reason": "length", "native_finish_reason": "length"}, Reason.IDS_CONTRADICT),
        ({"token_ids": WHOLE, "content": "Yes."}, Reason.IDS_CONTRADICT),
        ({"token_ids": (*REASONING, CLOSE, *ENCODE(" No."), END)}, Reason.IDS_CONTRADICT),
        ({"token_ids": (*WHOLE[:-1], END, END)}, Reason.LAYOUT_INVALID),
        ({"token_ids": ()}, Reason.IDS_CONTRADICT),
        ({"token_ids": WHOLE, "prompt_ids": PROMPT_IDS[:-1]}, Reason.PROMPT_MISMATCH),
        ({"token_ids": WHOLE, "prompt_ids": (*PROMPT_IDS[:-1], END)}, Reason.PROMPT_MISMATCH),
        ({"token_ids": (*WHOLE[:-1], 10**9, END)}, Reason.LAYOUT_INVALID),
    ],
    ids=[
        *("no end", "no end counted", "an end of a cut", "no white space", "other text", "two ends", "none"),
        *("shorter prompt", "other prompt", "no token"),
    ],
)
def test_returned_ids_must_say_what_the_text_says(changes: dict[str, object], expected: Reason) -> None:
    """Returned ids that do not say what the text says are refused."""
    assert expected is reason(of(answer(**changes)))


def test_calls_that_were_read_from_text_need_a_section() -> None:
    """A parser of text takes markers that the model wrote as text for a call."""
    ids = (*REASONING, CLOSE, *ENCODE(SECTION), END)
    calls = (ToolCall("functions.f:0", "f", "{}"),)

    refused = of(answer(**CALLED, tool_calls=calls, token_ids=ids, usage=counts(len(ids))))

    assert Reason.IDS_CONTRADICT is reason(refused)


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
def test_returned_ids_must_be_as_many_as_were_counted(changes: dict[str, object], expected: Reason) -> None:
    """Returned ids are believed only if they are as many as were counted."""
    told = answer(**{"token_ids": WHOLE, "prompt_ids": PROMPT_IDS, **changes})

    assert expected is reason(reconstruct(PROMPT, told, FORMAT, None))
    assert expected is reason(of(told))


def test_uncounted_control_tokens_are_added_to_the_count() -> None:
    """Ids of a route that does not count its control tokens are as many more."""
    quiet = route({TraitName.END_COUNTED: False, TraitName.THINK_CLOSE_COUNTED: False})
    told = answer(token_ids=WHOLE, prompt_ids=PROMPT_IDS, usage=counts(len(WHOLE) - 2))

    assert isinstance(of(told, quiet), TokenRow)
    assert Reason.IDS_CONTRADICT is reason(reconstruct(PROMPT, told, FORMAT, None))


def test_a_prompt_count_that_is_no_count_of_ids_says_nothing() -> None:
    told = answer(token_ids=WHOLE, prompt_ids=PROMPT_IDS, usage=counts(len(WHOLE), len(PROMPT_IDS) + 1))

    assert isinstance(of(told, route({TraitName.COUNT_NATIVE: False})), TokenRow)
    assert Reason.PROMPT_MISMATCH is reason(of(told))


def test_parsed_calls_need_a_count_that_all_ids_came() -> None:
    """Where no count says that all ids came parsed calls are refused."""
    calls = (ToolCall("functions.f:0", "f", "{}"),)
    ids = (*REASONING, CLOSE, *section_ids(), END)
    told = answer(**CALLED, tool_calls=calls, token_ids=ids, prompt_ids=PROMPT_IDS, usage=counts(len(ids)))

    assert isinstance(of(told), TokenRow)
    assert Reason.COUNT_NOT_NATIVE is reason(of(told, route({TraitName.COUNT_NATIVE: False})))


@pytest.mark.parametrize("content, expected", [(None, None), ("\ufffd", Reason.IDS_CONTRADICT)])
def test_a_cut_loses_half_a_character_and_gains_none(content: str | None, expected: Reason | None) -> None:
    """Found by the fuzz: ids that end in the reasoning say nothing of a content."""
    cut = {"finish_reason": "length", "native_finish_reason": "length", "usage": counts(len(REASONING))}
    row = of(answer(**cut, content=content, token_ids=REASONING, prompt_ids=PROMPT_IDS))

    assert expected is (row.reason if isinstance(row, Refusal) else None)


def listed(*tokens: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob("", FORMAT.tokenizer.token_bytes(token)) for token in tokens)


def test_logprobs_prove_ids_where_white_space_is_stripped() -> None:
    """Logprobs prove the ids of their bytes even where white space is stripped."""
    told = answer(content="Yes.", logprobs=listed(*WHOLE))
    row = of(told, route({TraitName.SEAM: "stripped"}))

    assert isinstance(row, TokenRow)
    assert (Evidence.LOGPROBS, WHOLE) == (row.evidence, row.output_ids)


def test_logprobs_of_a_route_without_a_fingerprint_prove_nothing() -> None:
    assert Reason.ROUTE_UNPROVEN is reason(reconstruct(PROMPT, answer(logprobs=listed(*WHOLE)), FORMAT, None))


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


# Parsed calls


def with_call(emitted: str, shown: str) -> TokenRow | Refusal:
    """What is made of returned ids with one call whose arguments were emitted, and shown, so."""
    mark = FORMAT.tool_markers()
    begin, stop, call, argument, end = (mark[f"<|tool_{name}|>"] for name in NAMES)
    section = (begin, call, *ENCODE("functions.f:0"), argument, *ENCODE(emitted), end, stop)
    ids = (*ENCODE("So it is."), CLOSE, *section, END)
    completion = answer(
        content=None,
        finish_reason="tool_calls",
        tool_calls=(ToolCall("functions.f:0", "f", shown),),
        token_ids=ids,
        usage=counts(len(ids)),
    )
    return reconstruct(PROMPT, completion, FORMAT, route({TraitName.TOOL_ARGUMENTS: "reserialised"}))


NAMES = ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")


@pytest.mark.parametrize(
    "emitted, shown", [('{"a": 1}', '{"a":1}'), ("NaN", "NaN"), ('{"a": -Infinity}', '{"a":-Infinity}')]
)
def test_rewritten_arguments_are_the_same_even_with_nan(emitted: str, shown: str) -> None:
    """Arguments written anew are the same also where they hold what is no JSON number."""
    assert isinstance(with_call(emitted, shown), TokenRow)


@pytest.mark.parametrize("emitted, shown", [('{"a": 1}', '{"a":2}'), ("NaN", "Infinity"), ("{", "}")])
def test_other_arguments_contradict_the_ids(emitted: str, shown: str) -> None:
    row = with_call(emitted, shown)

    assert isinstance(row, Refusal)
    assert Reason.IDS_CONTRADICT is row.reason


def dropped(*, before: str, shown: str, after: str = "", **changes: object) -> TokenRow | Refusal:
    """What is made of returned ids with a section that is in no field of the answer."""
    mark = FORMAT.tool_markers()
    begin, stop, call, argument, end = (mark[f"<|tool_{name}|>"] for name in NAMES)
    section = (begin, call, *ENCODE("functions.f:0"), argument, *ENCODE("{}"), end, stop)
    ids = (*ENCODE("So it is."), CLOSE, *ENCODE(before), *section, *ENCODE(after), END)
    completion = answer(content=shown, token_ids=ids, usage=counts(len(ids)), **changes)
    return reconstruct(PROMPT, completion, FORMAT, None)


@pytest.mark.parametrize("shown", ["Wait.", "Wait.Done."])
def test_a_section_that_a_parser_left_out_is_no_contradiction(shown: str) -> None:
    assert isinstance(dropped(before="Wait.", after="Done.", shown=shown), TokenRow)


@pytest.mark.parametrize("shown", ["Wait", "Wait.Don", "Done.", ""])
def test_text_that_was_left_out_beside_the_section_is_one(shown: str) -> None:
    row = dropped(before="Wait.", after="Done.", shown=shown)

    assert isinstance(row, Refusal)
    assert Reason.IDS_CONTRADICT is row.reason


def test_the_text_after_a_section_may_stand_beside_the_calls() -> None:
    """SGLang streams it as content."""
    calls = (ToolCall("functions.f:0", "f", "{}"),)
    shown = {"finish_reason": "tool_calls", "tool_calls": calls}

    assert isinstance(dropped(before="Wait.", after="Done.", shown="Wait.Done.", **shown), TokenRow)
    assert isinstance(dropped(before="Wait.", after="Done.", shown="Wait.", **shown), TokenRow)


@pytest.mark.parametrize("shown, taken", [("", True), ("{}", True), ('{"a": 1}', False)])
def test_no_arguments_may_be_shown_as_an_empty_object(shown: str, taken: bool) -> None:
    assert taken is isinstance(with_call("", shown), TokenRow)


@pytest.mark.parametrize("shown, taken", [('{"a"', True), ('{"a": 1', True), ('{"b"', False), ('{"a": 12', False)])
def test_a_call_that_the_limit_cut_is_shown_as_far_as_it_came(shown: str, taken: bool) -> None:
    mark = FORMAT.tool_markers()
    section = (mark["<|tool_calls_section_begin|>"], mark["<|tool_call_begin|>"], *ENCODE("functions.f:0"))
    ids = (*ENCODE("So it is."), CLOSE, *section, mark["<|tool_call_argument_begin|>"], *ENCODE('{"a": 1'))
    completion = answer(
        content=None,
        finish_reason="length",
        native_finish_reason="length",
        tool_calls=(ToolCall("functions.f:0", "f", shown),),
        token_ids=ids,
        usage=counts(len(ids)),
    )

    assert taken is isinstance(reconstruct(PROMPT, completion, FORMAT, None), TokenRow)
