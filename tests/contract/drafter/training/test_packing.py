"""Rows laid end to end, and which go together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.drafter.training.packing import PackingError, RowStates, pack, plan

pytestmark = pytest.mark.contract


def row(name: str, prompt: int, emitted: int, width: int = 2) -> RowStates:
    """Every number of the row is its own position."""
    length = prompt + emitted
    places = torch.arange(length)
    aux = places[:, None].float().expand(length, 3 * width).clone()
    last = places[prompt:, None].float().expand(emitted, width).clone()
    return RowStates(name, places, places >= prompt, aux, last)


def test_rows_lie_end_to_end_with_their_borders() -> None:
    batch = pack([row("a", 2, 1), row("b", 1, 3)])

    assert ((0, 3, 7), 7, ("a", "b")) == (batch.starts, batch.tokens, batch.row_ids)
    assert [0, 1, 2, 0, 1, 2, 3] == batch.ids.tolist()
    assert [0, 0, 1, 0, 1, 1, 1] == batch.mask.int().tolist()
    assert [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0] == batch.aux[:, 5].tolist()
    assert [2.0, 1.0, 2.0, 3.0] == batch.last[:, 0].tolist()


def test_the_nth_true_of_the_mask_is_the_nth_last_state() -> None:
    batch = pack([row("a", 2, 2), row("b", 3, 1)])

    assert batch.ids[batch.mask].tolist() == batch.last[:, 0].tolist()


def test_a_batch_moves_with_everything_in_it() -> None:
    moved = pack([row("a", 1, 1)]).to("meta")

    assert {"meta"} == {getattr(moved, name).device.type for name in ("ids", "mask", "aux", "last")}
    assert ((0, 2), ("a",)) == (moved.starts, moved.row_ids)


def test_no_row_is_no_batch() -> None:
    with pytest.raises(PackingError, match="a batch of no rows"):
        pack([])


@pytest.mark.parametrize("name", ["mask", "aux", "last"])
def test_a_row_that_contradicts_itself_is_named(name: str) -> None:
    good = row("a", 2, 2)
    short = replace(good, **{name: getattr(good, name)[:-1]})

    with pytest.raises(PackingError, match="row 'a': "):
        pack([short])


@pytest.mark.parametrize("name", ["aux", "last"])
def test_states_that_are_too_narrow_are_named(name: str) -> None:
    good = row("a", 2, 2, width=3)
    narrow = replace(good, **{name: getattr(good, name)[:, :-1]})

    with pytest.raises(PackingError, match="row 'a': "):
        pack([narrow])


def test_rows_of_targets_of_different_width_are_refused() -> None:
    with pytest.raises(PackingError, match="rows 'a' and 'b' have states of 2 and 3 numbers"):
        pack([row("a", 1, 1), row("b", 1, 1, width=3)])


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=40)


@given(LENGTHS, st.integers(4, 20), st.integers(0, 3), st.integers(0, 3))
def test_each_fitting_row_is_in_one_batch_within_the_limit(
    lengths: list[int], room: int, seed: int, epoch: int
) -> None:
    batches = plan(lengths, room, seed, epoch)

    assert [index for index, length in enumerate(lengths) if length <= room] == sorted(sum(batches, ()))
    assert all(0 < sum(lengths[index] for index in batch) <= room for batch in batches)


def test_more_open_batches_than_are_kept_lose_no_row() -> None:
    """Whole batches leave the open ones as others come."""
    batches = plan([5, 6] * 100, 10, 0, 0)

    assert [*range(200)] == sorted(sum(batches, ()))


def test_seed_and_epoch_alone_decide_the_plan() -> None:
    lengths = [3, 5, 2, 7, 4, 6, 1, 8] * 4

    assert plan(lengths, 16, 1, 0) == plan(lengths, 16, 1, 0)
    assert plan(lengths, 16, 1, 0) != plan(lengths, 16, 1, 1)
    assert plan(lengths, 16, 1, 0) != plan(lengths, 16, 2, 0)


def test_the_plan_of_an_epoch_is_known() -> None:
    """A golden: another plan would break resuming older runs exactly."""
    assert [(0, 2), (1,)] == plan([3, 5, 2, 9], 6, 0, 0)


def test_batches_are_nearly_full() -> None:
    lengths = [100 + 13 * index % 400 for index in range(2000)]

    batches = plan(lengths, 2048, 0, 0)

    assert sum(lengths) / (2048 * len(batches)) > 0.95
