"""Deltas that a server may have sent twice: settled by the count, or refused."""

from __future__ import annotations

import pytest

from harness.fixtures.answers import CLOSE, END, FORMAT, REASONING, answer, counts, of, reason, route
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.stream_deltas import MANY, is_cumulative, repeated_runs, without_repeats
from pipeline.records import Delta, Evidence, Reason, Refusal, TokenRow

ENCODE = FORMAT.tokenizer.encode


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["He", "Hello", "Hello wor"], True),
        (["a", "a", "ab"], True),
        (["\n", "\n", "Answer"], False),
        (["a", "a"], False),
        (["a"], False),
        ([], False),
    ],
    ids=str,
)
def test_deltas_are_cumulative_where_each_says_the_one_before_again(texts: list[str], expected: bool) -> None:
    assert expected is is_cumulative(texts)


@pytest.mark.parametrize(
    "texts, others",
    [
        (["a", "b"], set()),
        (["a", "a", "b"], {"ab"}),
        (["a", "a", "a"], {"aa", "a"}),
        (["a", "a", "b", "b"], {"abb", "aab", "ab"}),
        (["a", "b", "ab"], {"ab"}),
        (["a", "ab"], {"ab"}),
    ],
    ids=["no run", "two", "three", "two runs", "said again", "cumulative"],
)
def test_the_other_texts_leave_out_what_may_have_come_twice(texts: list[str], others: set[str]) -> None:
    assert others == set(without_repeats(texts))


def told(texts: list[str], tokens: int, deltas: str) -> TokenRow | Refusal:
    """Content that came in these deltas, `tokens` of it counted."""
    pieces = (Delta("reasoning", "So it is."), *(Delta("content", text) for text in texts))
    streamed = answer(content="".join(texts), deltas=pieces, usage=counts(len(REASONING) + 1 + tokens + 1))
    return of(streamed, route({TraitName.DELTAS: deltas}, stream=True))


def test_a_legitimate_repetition_is_kept_where_the_count_says_so() -> None:
    """Two line feeds are two tokens here, though the tokenizer would make one of them."""
    texts = [*(FORMAT.tokenizer.decode_text([token]) for token in ENCODE("So it is.")), "\n", "\n", "A"]
    pieces = tuple(
        Delta("reasoning" if place < len(texts) - 3 else "content", text) for place, text in enumerate(texts)
    )
    row = of(answer(content="\n\nA", deltas=pieces, usage=counts(len(texts) + 2)))

    assert isinstance(row, TokenRow)
    assert (Evidence.STREAM_DELTAS, (*REASONING, CLOSE, *ENCODE("\n"), *ENCODE("\n"), *ENCODE("A"), END)) == (
        row.evidence,
        row.output_ids,
    )


def test_a_duplicate_is_refused_where_the_count_says_so() -> None:
    assert isinstance(told(["\n", "\n", "A"], 2, "tokens"), Refusal)


@pytest.mark.parametrize("deltas", ["tokens", "batches", "rechunked"])
def test_cumulative_deltas_are_never_joined(deltas: str) -> None:
    texts = ["1", "12", "123"]

    for tokens in range(1, 5):
        row = told(texts, tokens, deltas)
        assert isinstance(row, Refusal) or tokens == len(ENCODE("".join(texts)))
    assert isinstance(told(texts, len(ENCODE(texts[-1])), deltas), Refusal)
    assert isinstance(told(texts, len(texts), deltas), Refusal)


def test_a_text_and_its_duplicate_of_one_length_are_ambiguous() -> None:
    """One hyphen and two are a token each: neither reading is ruled out, and no boundary shows it here."""
    single, double = "-", "--"
    assert (1, 1) == (len(ENCODE(single)), len(ENCODE(double)))

    row = told([single, single], len(ENCODE(double)), "rechunked")
    assert Reason.STREAM_INCONSISTENT is reason(row)


def test_too_many_repetitions_to_try_are_refused() -> None:
    texts = ["a", "a", "b", "b"] * MANY
    assert MANY < repeated_runs(texts)

    row = told(texts, len(ENCODE("".join(texts))), "rechunked")
    assert Reason.STREAM_INCONSISTENT is reason(row)
