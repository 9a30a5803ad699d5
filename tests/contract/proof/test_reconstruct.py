"""Answers that close and answers that contradict themselves: one case a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import FORMAT, PROMPT, PROMPT_IDS, REASONING, WHOLE, answer, counts, of, reason, route
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import (
    Delta,
    Evidence,
    Json,
    Prompt,
    Reason,
    Refusal,
    Span,
    SpanKind,
    TokenRow,
    ToolCall,
)

pytestmark = pytest.mark.contract

# Counted


def test_counts_that_close_prove_the_canonical_ids() -> None:
    row = of(answer())

    assert isinstance(row, TokenRow)
    assert (Evidence.COUNTED, PROMPT_IDS, WHOLE) == (row.evidence, row.prompt_ids, row.output_ids)
    split, last = len(REASONING), len(WHOLE) - 1
    assert row.spans == (
        Span(SpanKind.REASONING, 0, split),
        Span(SpanKind.THINK_CLOSE, split, split + 1),
        Span(SpanKind.CONTENT, split + 1, last),
        Span(SpanKind.END, last, last + 1),
    )


def test_a_route_that_does_not_count_the_end_token_has_one_less() -> None:
    fingerprint = route({TraitName.END_COUNTED: False})

    assert isinstance(of(answer(usage=counts(len(WHOLE) - 1)), fingerprint), TokenRow)
    assert Reason.COUNT_MISMATCH is reason(of(answer(), fingerprint))


@pytest.mark.parametrize("off", [-2, -1, 1, 2])
def test_a_count_that_nearly_fits_does_not_fit(off: int) -> None:
    assert Reason.COUNT_MISMATCH is reason(of(answer(usage=counts(len(WHOLE) + off))))


def test_an_answer_cut_in_its_reasoning_has_no_closing_tag() -> None:
    row = of(answer(content=None, finish_reason="length", native_finish_reason="length", usage=counts(len(REASONING))))

    assert isinstance(row, TokenRow)
    assert tuple(REASONING) == row.output_ids


def test_a_close_that_only_the_count_shows_is_refused() -> None:
    """Half a character, which shows nothing, has the same count."""
    cut = answer(content=None, finish_reason="length", native_finish_reason=None, usage=counts(len(REASONING) + 1))

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(cut))


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_an_answer_without_reasoning_hides_where_it_ended(streamed: bool) -> None:
    """The whole of it may have come as content, with the closing tag anywhere inside."""
    tokens = FORMAT.tokenizer.encode("So it is. Yes.")
    pieces = tuple(Delta("content", FORMAT.tokenizer.decode_text([token])) for token in tokens)
    told = answer(reasoning=None, content="So it is. Yes.", deltas=pieces if streamed else None)

    unknown = route({TraitName.UNCLOSED: None}, stream=streamed)

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(replace(told, usage=counts(len(tokens) + 2)), unknown))
    assert Reason.COUNT_MISMATCH is reason(of(replace(told, usage=counts(len(tokens) + 1)), unknown))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({TraitName.COUNT_NATIVE: False}, Reason.COUNT_NOT_NATIVE),
        ({TraitName.SEAM: "stripped"}, Reason.SEAM_LOSSY),
        ({TraitName.SEAM: "added"}, Reason.SEAM_LOSSY),
    ],
    ids=["counted from text", "stripped", "added"],
)
def test_a_route_that_loses_what_the_proof_needs_proves_nothing(
    changes: dict[TraitName, Json], expected: Reason
) -> None:
    assert expected is reason(of(answer(), route(changes)))


def test_traits_that_are_not_proven_open_nothing() -> None:
    assert Reason.ROUTE_UNPROVEN is reason(of(answer(), route(proven=False)))


def test_without_a_fingerprint_there_is_no_proof_from_text() -> None:
    assert Reason.ROUTE_UNPROVEN is reason(reconstruct(PROMPT, answer(), FORMAT, None))


# What the answer says of itself


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"usage": None}, Reason.USAGE_MISSING),
        ({"usage": counts(None)}, Reason.USAGE_MISSING),
        ({"usage": counts(len(WHOLE), None)}, Reason.USAGE_MISSING),
        ({"usage": counts(len(WHOLE), len(PROMPT_IDS) + 1)}, Reason.PROMPT_MISMATCH),
        ({"usage": counts(len(WHOLE), len(PROMPT_IDS) - 1)}, Reason.PROMPT_MISMATCH),
        ({"stopped_by": "STOP", "usage": counts(len(WHOLE) - 1)}, Reason.FINISH_CONTRADICTS),
        ({"finish_reason": None}, Reason.FINISH_UNKNOWN),
        ({"finish_reason": "content_filter"}, Reason.FINISH_UNKNOWN),
        ({"finish_reason": "error"}, Reason.FINISH_UNKNOWN),
        ({"native_finish_reason": "length"}, Reason.FINISH_CONTRADICTS),
        ({"native_finish_reason": "MAX_TOKENS"}, Reason.FINISH_CONTRADICTS),
        ({"finish_reason": "tool_calls"}, Reason.CALLS_LOST),
        ({"tool_calls": (ToolCall("functions.f:0", "f", "{}"),)}, Reason.CALLS_LOST),
        ({"content": " Ye\ufffds."}, Reason.REPLACEMENT_CHAR),
        ({"content": " \ud83d"}, Reason.LONE_SURROGATE),
        ({"reasoning": None, "content": None, "usage": counts(32)}, Reason.EMPTY_ANSWER),
    ],
    ids=[
        "no usage", "no completion count", "no prompt count", "longer prompt", "shorter prompt",
        "stop text", "no finish", "filtered", "error",
        "hidden cut", "hidden cut in capitals", "calls lost", "calls unsaid", "U+FFFD", "half a pair",
        "billed and empty",
    ],
)  # fmt: skip
def test_an_answer_that_contradicts_itself_is_refused(changes: dict[str, object], expected: Reason) -> None:
    assert expected is reason(of(answer(**changes)))


@pytest.mark.parametrize(
    "asked, expected",
    [
        (Expected(provider="Q"), Reason.WRONG_PROVIDER),
        (Expected(model="n"), Reason.WRONG_MODEL),
        (Expected(max_tokens=len(WHOLE) - 3), Reason.FINISH_CONTRADICTS),
    ],
    ids=["provider", "model", "limit"],
)
def test_an_answer_from_elsewhere_is_refused(asked: Expected, expected: Reason | None) -> None:
    row = reconstruct(PROMPT, answer(), FORMAT, route(), asked)

    assert expected is (row.reason if isinstance(row, Refusal) else None)


def test_a_cut_that_is_not_at_the_limit_is_refused() -> None:
    cut = answer(finish_reason="length", native_finish_reason="length", usage=counts(len(WHOLE) - 1))

    assert Reason.FINISH_CONTRADICTS is reason(reconstruct(PROMPT, cut, FORMAT, route(), Expected(max_tokens=500)))


def test_a_stop_at_the_limit_is_ambiguous_if_end_is_uncounted() -> None:
    """A stop at exactly the limit is ambiguous where the end token does not count."""
    fingerprint = route({TraitName.END_COUNTED: False})
    stopped = answer(usage=counts(len(WHOLE) - 1))
    row = reconstruct(PROMPT, stopped, FORMAT, fingerprint, Expected(max_tokens=len(WHOLE) - 1))

    assert Reason.AMBIGUOUS_LAYOUT is reason(row)


def test_a_prompt_with_a_control_token_needs_its_ids() -> None:
    """A prompt that spells a control token is refused unless its ids come back."""
    prompt = Prompt("r", ({"role": "user", "content": "what is <think>?"},))
    ids = FORMAT.render(prompt)
    told = answer(usage=counts(len(WHOLE), len(ids)))

    assert Reason.SPECIAL_TEXT is reason(of(told, prompt=prompt))
    assert isinstance(of(replace(told, prompt_ids=ids, token_ids=WHOLE), prompt=prompt), TokenRow)


def test_thinking_that_was_off_and_came_all_the_same_is_refused() -> None:
    prompt = replace(PROMPT, thinking=False)
    told = answer(usage=counts(len(WHOLE), len(PROMPT_IDS) + 1))

    assert Reason.LAYOUT_INVALID is reason(of(told, prompt=prompt))


def test_the_routes_prefix_stands_in_the_prompt_ids() -> None:
    """A prefix that the route puts first stands in the prompt ids."""
    fingerprint = route({TraitName.PROMPT_PREFIX: ["[BOS]"]})
    row = of(answer(usage=counts(len(WHOLE), len(PROMPT_IDS) + 1)), fingerprint)

    assert isinstance(row, TokenRow)
    assert (FORMAT.tokenizer.id_of("[BOS]"), *PROMPT_IDS) == row.prompt_ids
