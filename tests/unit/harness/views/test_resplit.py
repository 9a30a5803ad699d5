"""Other tokenisations of the same bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from harness.tiny_target.vocabulary import write_vocabulary
from harness.views.resplit import canonical, is_canonical, resplit
from pipeline.formats.tokenizer import Tokenizer, load_tokenizer

MERGES = (b"ab", b"abc", b"bc", b"cd", b" a")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The 256 bytes and five merges: `abcd` is `abc` + `d`, and could be `ab` + `cd`."""
    directory: Path = tmp_path_factory.mktemp("vocabulary")
    tokens = [*(bytes([value]) for value in range(256)), *MERGES]
    write_vocabulary({token: rank for rank, token in enumerate(tokens)}, directory)
    return load_tokenizer(directory)


def spelled(tokenizer: Tokenizer, *parts: str) -> tuple[int, ...]:
    """The tokens that are exactly these parts."""
    found = [tokenizer.id_of_bytes(part.encode()) for part in parts]
    return tuple(token for token in found if token is not None)


def test_one_token_is_cut_in_two(tokenizer: Tokenizer) -> None:
    assert spelled(tokenizer, "a", "b") == resplit(tokenizer, spelled(tokenizer, "ab"), Random(1), same_count=False)


def test_one_boundary_is_moved_where_the_count_must_stay(tokenizer: Tokenizer) -> None:
    ids = tuple(tokenizer.encode("abcd"))
    assert spelled(tokenizer, "abc", "d") == ids
    assert spelled(tokenizer, "ab", "cd") == resplit(tokenizer, ids, Random(1), same_count=True)


def test_a_boundary_that_only_moves_with_its_neighbour_is_found(tokenizer: Tokenizer) -> None:
    """`a` + `bc` + `d` + `!` has no other pair of the same count before `ab` + `c` + `d`, three wide."""
    ids = spelled(tokenizer, "abc", "d", "!")
    other = resplit(tokenizer, ids, Random(1), same_count=True)
    assert other == spelled(tokenizer, "ab", "cd", "!")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("same_count", [True, False])
def test_bytes_and_control_tokens_stay_and_the_split_does_not(
    tokenizer: Tokenizer, seed: int, *, same_count: bool
) -> None:
    text = tokenizer.encode("abcd abc")
    ids = (*text, tokenizer.id_of("</think>"), *text, tokenizer.id_of("<|im_end|>"))
    other = resplit(tokenizer, ids, Random(seed), same_count=same_count)
    assert other is not None
    assert tokenizer.decode_bytes(ids) == tokenizer.decode_bytes(other)
    assert ids == canonical(tokenizer, other) != other
    assert [tokenizer.name_of(token) for token in ids if tokenizer.is_control(token)] == [
        tokenizer.name_of(token) for token in other if tokenizer.is_control(token)
    ]
    assert (len(ids) if same_count else len(ids) + 1) == len(other)


def test_an_answer_that_is_not_canonical_is_not_led_back(tokenizer: Tokenizer) -> None:
    """The only other split of `ab` + `c` with two tokens, but for `a` + `bc`, would be canonical `abc` cut nowhere."""
    ids = spelled(tokenizer, "ab", "cd")
    assert resplit(tokenizer, ids, Random(1), same_count=True) is None


@pytest.mark.parametrize("same_count", [True, False])
def test_what_cannot_be_split_otherwise_is_none(tokenizer: Tokenizer, *, same_count: bool) -> None:
    assert resplit(tokenizer, tokenizer.encode("z"), Random(1), same_count=same_count) is None
    assert resplit(tokenizer, (tokenizer.id_of("<think>"),), Random(1), same_count=same_count) is None


def test_half_a_character_is_not_canonical(tokenizer: Tokenizer) -> None:
    assert canonical(tokenizer, tokenizer.encode("\N{SNOWMAN}")[:1]) is None
    assert not is_canonical(tokenizer, tokenizer.encode("\N{SNOWMAN}")[:1])


def test_the_order_of_tries_is_the_seeds(tokenizer: Tokenizer) -> None:
    ids = tuple(tokenizer.encode("abcd abcd"))
    cuts = {resplit(tokenizer, ids, Random(seed), same_count=False) for seed in range(40)}
    assert len(cuts) > 1
    again = [resplit(tokenizer, ids, Random(3), same_count=False) for _ in range(2)]
    assert again[0] == again[1]
