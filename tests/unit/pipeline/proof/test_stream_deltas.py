"""Deltas as tokens, with characters that a server holds back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.tokenizer import Tokenizer
from pipeline.proof.stream_deltas import crossed_boundary, may_hide_bytes, spell
from pipeline.records import RefusedError

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


MANY = tokenizer(
    b"ab", b"a\xc3", b" \xc3", b"\xc3\xa9", b"\xa9\xc3", b" \xe2\x9c", "é".encode() * 2, b"\xb1 ", b"\xa8a"
)


@given(st.lists(st.sampled_from(["a", "ab", " ", "é", "ñ", "éé", "ñ ", "✨", "✨a", "<|c1|>", "longer than a token"])))
def test_of_all_ways_to_hold_bytes_back_just_one_is_a_proof(texts: list[str]) -> None:
    ways = list(spelled(texts, 0))

    assert (ways[0] if len(ways) == 1 else None) == spell(MANY, texts, MARKER)


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
        token = MANY.id_of_bytes(first.encode()[held:] + after[:ahead])
        if token is not None:
            yield from ((token, *ids) for ids in spelled(rest, ahead))


@pytest.mark.parametrize(
    "texts, expected",
    [(["abab"], None), (["ab", "ab"], None), (["a", "bab"], 1), (["aba", "b"], 3)],
    ids=["one batch", "at a token", "inside the first", "inside the second"],
)
def test_a_delta_that_ends_inside_a_token_is_found(texts: list[str], expected: int | None) -> None:
    assert expected == crossed_boundary(tokenizer(b"ab"), [256, 256], texts)


def test_a_token_that_ends_inside_a_character_counts_to_where_the_character_begins() -> None:
    assert crossed_boundary(tokenizer(b" \xe2\x9c"), [256, 0xA8], [" ", "✨"]) is None


@pytest.mark.parametrize(
    "text, hides",
    [(" ", True), ("ab ", True), ("ab", False), (" a", False), ("", False), ("🎈", False), ("é ", True)],
)
def test_a_field_hides_bytes_where_its_last_token_may_have_begun_a_character(text: str, hides: bool) -> None:
    """As in Kimi's own vocabulary, a space may come with the first half of an emoji."""
    half = tokenizer(b"ab", b" a", b"\xf0\x9f", b" \xf0\x9f")

    assert hides == may_hide_bytes(half, text)


def test_half_a_surrogate_pair_hides_nothing_and_is_refused() -> None:
    with pytest.raises(RefusedError, match="lone surrogate"):
        may_hide_bytes(tokenizer(), "\ud83d")
