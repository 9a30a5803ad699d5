"""Which rows train, which validate, and which process reads them.

Guarantees: the hash of a row's id alone decides whether it trains or validates, so that it is on the same side in every
run, however rows are added; none is on both. The batches of a step follow from its number. Each process reads its own
share of them, and all read equally many: where one is missing, a process repeats another's batch, which does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from pipeline.drafter.model.loss import MaskMode, counts
from pipeline.drafter.training.packing import PackedBatch, pack, plan
from pipeline.drafter.training.recipe import Course, course_of

if TYPE_CHECKING:
    from pipeline.drafter.target.hidden_states import StateSource
    from pipeline.drafter.training.recipe import Recipe

STEPS_TAUGHT = 2
"""Emitted tokens after its first token that a row needs to teach: one is read, one is predicted."""


class SamplerError(Exception):
    """Rows of which none can train."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """A batch for one process, as indices of rows.

    If `counts` is false, another process has the same batch.
    """

    rows: tuple[int, ...]
    counts: bool


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Indices of rows by use; `too_long` and `mute` are unused.

    `mute` rows have fewer than two emitted tokens with a token before them: nothing to read with the state before it,
    or nothing to predict.
    """

    training: tuple[int, ...]
    held_out: tuple[int, ...]
    too_long: tuple[int, ...]
    mute: tuple[int, ...]


def split_rows(source: StateSource, recipe: Recipe, chosen: Sequence[int] | None = None) -> RowSplit:
    """Split rows by use; only those in `chosen`, if given.

    Raises SamplerError where none trains.
    """
    found: dict[str, list[int]] = {"training": [], "held_out": [], "too_long": [], "mute": []}
    rows, lengths = source.training, source.lengths
    for index in range(len(lengths)) if chosen is None else chosen:
        row = rows[index]
        if int(row.mask[1:].sum()) < STEPS_TAUGHT:
            side = "mute"
        elif lengths[index] > recipe.tokens_a_batch:
            side = "too_long"
        else:
            side = "held_out" if is_held_out(row.id, recipe.held_out) else "training"
        found[side].append(index)
    split = RowSplit(**{side: tuple(indices) for side, indices in found.items()})
    if not split.training:
        listed = ", ".join(f"{len(indices)} {side.replace('_', ' ')}" for side, indices in found.items() if indices)
        most = max(found, key=lambda side: len(found[side])) if listed else "training"
        raise SamplerError(f"no row is left to train on ({listed or 'there are none'}). {_remedy(most, recipe)}")
    return split


def _remedy(side: str, recipe: Recipe) -> str:
    """Return what brings the rows of this side into training."""
    return {
        "training": "Give folders with rows",
        "held_out": f"Lower --held-out below {recipe.held_out}, or give more rows",
        "too_long": f"Raise --tokens-a-batch above {recipe.tokens_a_batch}",
        "mute": "Give rows that emitted at least two tokens after another token",
    }[side]


def is_held_out(row_id: str, share: float) -> bool:
    """Whether the row with this id validates, for this share."""
    digest = hashlib.sha256(row_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


@dataclass(slots=True)
class BatchSampler:
    """The rows of a training, as batches."""

    source: StateSource
    split: RowSplit
    recipe: Recipe
    _planned: tuple[int, list[tuple[int, ...]]] = field(init=False, default=(-1, []))
    course: Course = field(init=False)

    def __post_init__(self) -> None:
        recipe = self.recipe
        epochs = recipe.epochs if recipe.steps is None else min(recipe.epochs, recipe.steps)
        batches = [len(self._plan(epoch)) for epoch in range(epochs)]
        self.course = course_of(batches, recipe.batches_a_step, recipe.steps)

    def step(self, number: int) -> list[tuple[int, ...]]:
        """Return the batches of a step, over all processes."""
        epoch, place = self.course.place(number)
        size = self.recipe.batches_a_step
        return self._plan(epoch)[place * size : (place + 1) * size]

    def held_out(self) -> list[tuple[int, ...]]:
        """Return the validation batches, the same each time."""
        return self._packed(self.split.held_out, 0)

    def states(self, rows: Sequence[int]) -> PackedBatch:
        """Return the rows with their states. Raises StatesError, StoreError."""
        return pack(self.source.rows(rows))

    def supervised(self, rows: Sequence[int], mode: MaskMode, steps: int) -> torch.Tensor:
        """Return what each step averages over in these rows.

        Float64 [steps]; no states are computed for it.
        """
        read = [self.source.training[row] for row in rows]
        starts = (0, *accumulate(row.length for row in read))
        ids, mask = torch.cat([row.ids for row in read]), torch.cat([row.mask for row in read])
        none = torch.empty(0)
        return counts(PackedBatch(ids, mask, starts, none, none, tuple(row.id for row in read)), mode, steps)

    def tokens(self, batches: Sequence[Sequence[int]]) -> int:
        return sum(self.source.lengths[row] for rows in batches for row in rows)

    def ids(self, rows: Sequence[int]) -> list[str]:
        return [self.source.training[row].id for row in rows]

    def _plan(self, epoch: int) -> list[tuple[int, ...]]:
        if self._planned[0] != epoch:
            self._planned = epoch, self._packed(self.split.training, epoch)
        return self._planned[1]

    def _packed(self, indices: Sequence[int], epoch: int) -> list[tuple[int, ...]]:
        lengths = [self.source.lengths[index] for index in indices]
        planned = plan(lengths, self.recipe.tokens_a_batch, self.recipe.seed, epoch)
        return [tuple(indices[at] for at in rows) for rows in planned]


def rank_shares(batches: Sequence[tuple[int, ...]], rank: int, size: int) -> Iterator[RankShare]:
    """Yield one process's share: every `size`-th batch.

    All processes get equally many.
    """
    for first in range(0, len(batches), size):
        counted = first + rank < len(batches)
        yield RankShare(batches[first + rank] if counted else batches[first], counted)
