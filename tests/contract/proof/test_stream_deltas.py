"""One token a delta: spelling, held-back characters, repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fixtures.answer_parts import split_once
from harness.fixtures.answers import (
    CLOSE,
    CONTENT,
    ENCODE,
    END,
    FORMAT,
    REASONING,
    WHOLE,
    answer,
    counts,
    of,
    reason,
    route,
)
from pipeline.formats.tokenizer import Tokenizer
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.stream_deltas import (
    MANY,
    crossed_boundary,
    is_cumulative,
    may_hide_bytes,
    repeated_runs,
    spell,
    without_repeats,
)
from pipeline.records import (
    Delta,
    Evidence,
    Json,
    Reason,
    Refusal,
    RefusedError,
    TokenRow,
)

pytestmark = pytest.mark.contract

# Spelling

CONTROL = [f"<|c{number}|>" for number in range(256)]
SINGLE = {bytes([byte]): byte for byte in range(256)}
MARKER = {"<|c1|>": 999}


def tokenizer(*merged: bytes) -> Tokenizer:
    """Every single byte, then these, in order, from id 256."""
    ranks = {**SINGLE, **{data: 256 + place for place, data in enumerate(merged)}}
    return Tokenizer(Path("made"), ranks, CONTROL, "0" * 64)


def test_each_delta_is_the_token_of_its_bytes() -> None:
    assert (256, 32, 97) == spell(tokenizer(b"ab"), ["ab", " ", "a"], {})


def test_a_non_canonical_split_is_spelled_as_it_was_streamed() -> None:
    assert (97, 98) == spell(tokenizer(b"ab"), ["a", "b"], {})


def test_a_delta_that_is_no_token_spells_nothing() -> None:
    assert spell(tokenizer(), ["ab"], {}) is None


def test_a_space_before_a_character_may_hold_its_first_byte() -> None:
    """With `é` and both halves in the vocabulary, " " then "é" has two spellings: nothing is proven."""
    both = tokenizer("é".encode(), b" \xc3")

    assert spell(both, [" ", "é"], {}) is None


def test_one_spelling_that_holds_bytes_back_is_a_proof() -> None:
    """`✨` is no token here, so the delta before it must hold its first two bytes."""
    held = tokenizer(b" \xe2\x9c")

    assert (256, 0xA8) == spell(held, [" ", "✨"], {})


def test_held_back_bytes_may_chain() -> None:
    chained = tokenizer(b"a\xc3", b"\xa9\xc3")

    assert (256, 257, 0xB1) == spell(chained, ["a", "é", "ñ"], {})


def test_markers_are_their_own_tokens_and_hold_nothing_back() -> None:
    assert (97, 999, 98) == spell(tokenizer(), ["a", "<|c1|>", "b"], MARKER)
    assert spell(tokenizer(), ["<|c1|>", "é"], MARKER) is None


def test_half_a_surrogate_pair_spells_nothing() -> None:
    assert spell(tokenizer(), ["\ud83d"], {}) is None


def test_no_delta_spells_no_token() -> None:
    assert () == spell(tokenizer(), [], {})


SPLITTABLE = tokenizer(
    b"ab", b"a\xc3", b" \xc3", b"\xc3\xa9", b"\xa9\xc3", b" \xe2\x9c", "é".encode() * 2, b"\xb1 ", b"\xa8a"
)


@given(st.lists(st.sampled_from(["a", "ab", " ", "é", "ñ", "éé", "ñ ", "✨", "✨a", "<|c1|>", "longer than a token"])))
def test_of_all_ways_to_hold_bytes_back_just_one_is_a_proof(texts: list[str]) -> None:
    ways = list(spelled(texts, 0))

    assert (ways[0] if len(ways) == 1 else None) == spell(SPLITTABLE, texts, MARKER)


def spelled(texts: list[str], held: int) -> Iterator[tuple[int, ...]]:
    """Every way, `held` bytes of the first text having come with the token before it."""
    if not texts:
        yield ()
        return
    (first, *rest), after = texts, texts[1][0].encode() if len(texts) > 1 else b""
    if first in MARKER:
        yield from ((MARKER[first], *ids) for ids in spelled(rest, 0))
        return
    for ahead in range(max(len(after), 1)):
        token = SPLITTABLE.id_of_bytes(first.encode()[held:] + after[:ahead])
        if token is not None:
            yield from ((token, *ids) for ids in spelled(rest, ahead))


@pytest.mark.parametrize(
    "texts, expected",
    [(["abab"], None), (["ab", "ab"], None), (["a", "bab"], 1), (["aba", "b"], 3)],
    ids=["one batch", "at a token", "inside the first", "inside the second"],
)
def test_a_delta_that_ends_inside_a_token_is_found(texts: list[str], expected: int | None) -> None:
    assert expected == crossed_boundary(tokenizer(b"ab"), [256, 256], texts)


def test_half_a_character_counts_to_where_it_begins() -> None:
    """A token that ends inside a character counts to where the character begins."""
    assert crossed_boundary(tokenizer(b" \xe2\x9c"), [256, 0xA8], [" ", "✨"]) is None


@pytest.mark.parametrize(
    "text, hides",
    [(" ", True), ("ab ", True), ("ab", False), (" a", False), ("", False), ("🎈", False), ("é ", True)],
)
def test_a_last_token_that_began_a_character_hides_bytes(text: str, hides: bool) -> None:
    """As in Kimi's own vocabulary, a space may come with the first half of an emoji."""
    half = tokenizer(b"ab", b" a", b"\xf0\x9f", b" \xf0\x9f")

    assert hides == may_hide_bytes(half, text)


def test_half_a_surrogate_pair_hides_nothing_and_is_refused() -> None:
    with pytest.raises(RefusedError, match="lone surrogate"):
        may_hide_bytes(tokenizer(), "\ud83d")


# Repeats


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
def test_deltas_are_cumulative_where_each_repeats_the_last(texts: list[str], expected: bool) -> None:
    """Deltas are cumulative where each says the one before again."""
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


def test_cumulative_deltas_that_are_tokens_prove_nothing() -> None:
    """The model wrote a grave accent twice; the second delta says both."""
    texts = ["`", "``"]
    pieces = (*deltas(*REASONING, field="reasoning"), *(Delta("content", text) for text in texts))
    streamed = answer(content="".join(texts), deltas=pieces, usage=counts(len(REASONING) + 1 + 2 + 1))

    assert (1, 1, 1) == tuple(len(ENCODE(text)) for text in (*texts, "".join(texts)))
    assert Reason.COUNT_MISMATCH is reason(of(streamed))


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


# Whole answers


def deltas(*tokens: int, field: str = "content") -> tuple[Delta, ...]:
    return tuple(Delta(field, FORMAT.tokenizer.decode_text([token])) for token in tokens)  # type: ignore[arg-type]  # a field's name


def test_deltas_prove_a_split_that_no_tokenizer_would_make() -> None:
    odd = split_once(REASONING)
    assert odd != REASONING
    streamed = answer(
        deltas=(*deltas(*odd, field="reasoning"), *deltas(*CONTENT)), usage=counts(len(odd) + len(CONTENT) + 2)
    )
    row = of(streamed)

    assert isinstance(row, TokenRow)
    assert (Evidence.STREAM_DELTAS, (*odd, CLOSE, *CONTENT, END)) == (row.evidence, row.output_ids)


@pytest.mark.parametrize(
    "trait, value, expected",
    [
        (TraitName.DELTAS, "batches", Reason.COUNT_MISMATCH),
        (TraitName.DELTAS, "rechunked", Reason.COUNT_MISMATCH),
        (TraitName.COUNT_NATIVE, False, Reason.COUNT_NOT_NATIVE),
    ],
)
def test_deltas_prove_tokens_only_on_a_proven_route(trait: TraitName, value: Json, expected: Reason) -> None:
    odd = split_once(REASONING)
    streamed = answer(
        deltas=(*deltas(*odd, field="reasoning"), *deltas(*CONTENT)), usage=counts(len(odd) + len(CONTENT) + 2)
    )

    assert expected is reason(of(streamed, route({TraitName.DELTAS: "tokens", trait: value}, stream=True)))


def test_a_batch_of_tokens_leaves_the_count_to_prove_them() -> None:
    streamed = answer(deltas=(Delta("reasoning", "So it is."), *deltas(*CONTENT)))
    row = of(streamed)

    assert isinstance(row, TokenRow)
    assert (Evidence.COUNTED, WHOLE) == (row.evidence, row.output_ids)


def test_a_delta_that_ends_inside_a_token_is_a_contradiction() -> None:
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
