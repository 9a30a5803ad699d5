"""Which rows train or validate, and who reads them."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from harness.fixtures.trainings import LENGTHS, DrawnStates, recipe
from pipeline.drafter.model.loss import MaskMode
from pipeline.drafter.training.sampler import (
    BatchSampler,
    RankShare,
    SamplerError,
    is_held_out,
    rank_shares,
    split_rows,
)

pytestmark = pytest.mark.contract


def test_the_side_of_a_row_is_in_the_hash_of_its_id() -> None:
    """sha256 of "a" begins ca97, of "b" 3e23: 0.791 and 0.243 of the way."""
    assert (False, True) == (is_held_out("a", 0.79), is_held_out("a", 0.8))
    assert (False, True) == (is_held_out("b", 0.24), is_held_out("b", 0.25))
    assert not is_held_out("b", 0.0)


def test_about_the_share_is_held_out() -> None:
    assert 0.04 < sum(is_held_out(f"row {n}", 0.05) for n in range(10_000)) / 10_000 < 0.06


def test_no_row_is_on_two_sides() -> None:
    lengths = [*LENGTHS, (3, 1), (90, 20), (0, 2)]
    split = split_rows(DrawnStates(lengths), recipe(held_out=0.5))

    assert ((9,), (8, 10)) == (split.too_long, split.mute)
    assert list(range(11)) == sorted(chain(split.training, split.held_out, split.too_long, split.mute))
    assert [is_held_out(f"row-{at}", 0.5) for at in range(8)] == [at in split.held_out for at in range(8)]


@pytest.mark.parametrize(
    "lengths, changes, said",
    [
        ([(3, 1), (0, 2)], {}, r"\(2 mute\)\. Give rows that emitted at least two tokens after another token"),
        (
            [(0, 3), (90, 20), (90, 30)],
            {"held_out": 0.999999},
            r"\(1 held out, 2 too long\)\. Raise --tokens-a-batch above 100",
        ),
        (LENGTHS, {"held_out": 0.999999}, r"\(8 held out\)\. Lower --held-out below 0\.999999"),
        ([], {}, r"\(there are none\)\. Give folders with rows"),
    ],
)
def test_without_a_row_that_teaches_nothing_begins(
    lengths: list[tuple[int, int]], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(SamplerError, match=f"no row is left to train on {said}"):
        split_rows(DrawnStates(lengths), recipe(**changes))


def test_a_row_without_a_prompt_trains_from_its_third_token_on() -> None:
    states, chosen = DrawnStates([(0, 3), (0, 2)]), recipe()
    sampler = BatchSampler(states, split_rows(states, chosen), chosen)

    assert ((0,), (1,)) == (sampler.split.training, sampler.split.mute)
    assert [1.0, 0.0, 0.0] == sampler.supervised((0,), MaskMode.ALIGNED, 3).tolist()


def test_each_epoch_reads_every_row_once_in_another_order() -> None:
    states, chosen = DrawnStates(), recipe(tokens_a_batch=20)
    sampler = BatchSampler(states, split_rows(states, chosen), chosen)
    first, second = sampler.course.epochs

    epochs = [[sampler.step(at) for at in range(first)], [sampler.step(first + at) for at in range(second)]]

    assert [list(range(8))] * 2 == [sorted(row for step in epoch for rows in step for row in rows) for epoch in epochs]
    assert epochs[0] != epochs[1]
    assert all(sampler.tokens([rows]) <= 20 for epoch in epochs for step in epoch for rows in step)


def test_the_last_step_of_an_epoch_takes_the_rest() -> None:
    states, chosen = DrawnStates([(5, 5)] * 5), recipe(tokens_a_batch=10, batches_a_step=2)
    sampler = BatchSampler(states, split_rows(states, chosen), chosen)

    assert ((3, 3), [2, 2, 1]) == (sampler.course.epochs, [len(sampler.step(at)) for at in range(3)])


def test_all_processes_read_equally_many_batches() -> None:
    batches = [(0,), (1,), (2,)]

    assert [RankShare((0,), counts=True), RankShare((2,), counts=True)] == [*rank_shares(batches, 0, 2)]
    assert [RankShare((1,), counts=True), RankShare((2,), counts=False)] == [*rank_shares(batches, 1, 2)]


def test_supervised_rows_are_counted_without_states() -> None:
    """A row of e emitted tokens has e - 1 pairs of one that is read and one that is predicted, at each step that fits.

    Rows 0 and 2 have 3 + 5 and 4 + 3 tokens: 4 and 2 pairs; all steps reach back into their prompts.
    """
    states, chosen = DrawnStates(), recipe()
    sampler = BatchSampler(states, split_rows(states, chosen), chosen)

    assert torch.equal(torch.tensor([6.0, 6.0, 6.0]).double(), sampler.supervised((0, 2), MaskMode.ALIGNED, 3))
    assert torch.equal(torch.tensor([15.0] * 3).double(), sampler.supervised((0, 2), MaskMode.SPECFORGE, 3))
