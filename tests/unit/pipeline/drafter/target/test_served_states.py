"""Which layers are asked for by which id, and states that are not all there."""

from __future__ import annotations

import pytest

from pipeline.drafter.target.server import ServedStatesError, flags, layer_ids, rows_of
from pipeline.records import Json

META: dict[str, Json] = {
    "completion_tokens": 3,
    "cached_tokens": 0,
    "hidden_states": [[[1.0, 2.0], [3.0, 4.0]], [5.0, 6.0], [7, 8]],
}


@pytest.mark.parametrize(
    "family, outputs, expected",
    [("llama", (1, 3, 4), (1, 3, 4)), ("llama", (0, 3, 4), (0, 3, 4)), ("deepseek_v3", (1, 3, 4), (2, 4, 5)),
     ("kimi_k25", (2, 29, 57), (3, 30, 58))],
)  # fmt: skip
def test_each_family_counts_its_layers_in_its_own_way(
    family: str, outputs: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert expected == layer_ids(family, outputs, 61)


@pytest.mark.parametrize(
    "family, outputs, why",
    [("kimi_k2", (0, 3, 4), "output of layer 0"), ("gpt_oss", (1, 3, 4), "is not known here"),
     ("llama", (1, 3, 7), "not the last"), ("llama", (), "not the last")],
)  # fmt: skip
def test_layers_that_cannot_be_had_are_refused(family: str, outputs: tuple[int, ...], why: str) -> None:
    with pytest.raises(ServedStatesError, match=why):
        layer_ids(family, outputs, 8)


def test_the_server_is_told_to_leave_nothing_out() -> None:
    assert (
        "--enable-return-aux-hidden-states --speculative-algorithm EAGLE3 --return-aux-hidden-state-layer-ids 1 3 4 "
        "--disable-radix-cache --chunked-prefill-size -1"
    ) == " ".join(flags("llama", (1, 3, 4), 8))


def test_there_is_a_row_for_every_token_but_the_last() -> None:
    assert [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]] == rows_of(META, prompt_tokens=2, width=2)


@pytest.mark.parametrize(
    "change, prompt_tokens, width, why",
    [({}, 3, 2, "4 rows of states for 5 tokens"), ({"cached_tokens": 7}, 2, 2, "7 tokens came from the prefix cache"),
     ({"hidden_states": None}, 2, 2, "returned no states"), ({}, 2, 3, r"rows of \[2\] numbers, 3 are wanted"),
     ({"hidden_states": [[1.0], [2.0]]}, 2, 1, "no list of numbers")],
)  # fmt: skip
def test_a_missing_row_is_never_passed_over(change: dict[str, Json], prompt_tokens: int, width: int, why: str) -> None:
    with pytest.raises(ServedStatesError, match=why):
        rows_of({**META, **change}, prompt_tokens, width)
