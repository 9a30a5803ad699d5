"""Which rows train and which validate, and which of them each process reads at each step.

Guarantees: a row validates or trains by the hash of its id alone, so that it is on the same side in every run, however
rows are added; none is on both. The batches of a step follow from its number, and each process of several reads its own
share of them, as often as the others do: where there is one batch too few, it reads another's again for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pipeline.drafter.model.loss import MaskMode, counts
from pipeline.drafter.training.packing import PackedBatch, pack, plan
from pipeline.drafter.training.recipe import Course, course_of

if TYPE_CHECKING:
    from pipeline.drafter.target.hidden_states import StateSource
    from pipeline.drafter.training.recipe import Recipe

STEPS_TAUGHT = 2
"""Emitted tokens after its first that a row needs to teach anything: one that is read, one that is predicted."""


class SamplerError(Exception):
    """Rows of which none can train, or none can validate though some should."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """A batch that a process reads, as indices of rows; where it does not count, another process has it too."""

    rows: tuple[int, ...]
    counts: bool


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Indices of rows by what becomes of them; `too_long` and `mute` train nowhere and are counted.

    `mute` have fewer than two emitted tokens with a token before them, so that there is none to read with the state of
    the one before it, and none to predict.
    """

    training: tuple[int, ...]
    held_out: tuple[int, ...]
    too_long: tuple[int, ...]
    mute: tuple[int, ...]


def split_rows(source: StateSource, recipe: Recipe, wanted: Sequence[int] | None = None) -> RowSplit:
    """Every row's side; only rows among `wanted`, where it is given. Raises FeedError where none trains."""
    found: dict[str, list[int]] = {"training": [], "held_out": [], "too_long": [], "mute": []}
    rows, lengths = source.training, source.lengths
    for index in range(len(lengths)) if wanted is None else wanted:
        row = rows[index]
        if int(row.mask[1:].sum()) < STEPS_TAUGHT:
            side = "mute"
        elif lengths[index] > recipe.tokens_a_batch:
            side = "too_long"
        else:
            side = "held_out" if is_held_out(row.id, recipe.held_out) else "training"
        found[side].append(index)
    sides = RowSplit(**{side: tuple(indices) for side, indices in found.items()})
    if not sides.training:
        told = ", ".join(f"{len(indices)} {side.replace('_', ' ')}" for side, indices in found.items() if indices)
        most = max(found, key=lambda side: len(found[side])) if told else "training"
        raise SamplerError(f"no row is left to train on ({told or 'there are none'}). {_mend(most, recipe)}")
    return sides


def _mend(side: str, recipe: Recipe) -> str:
    """What brings the rows of this side, the most of all, into training."""
    return {
        "training": "Give folders with rows",
        "held_out": f"Lower --held-out below {recipe.held_out}, or give more rows",
        "too_long": f"Raise --tokens-a-batch above {recipe.tokens_a_batch}",
        "mute": "Give rows that emitted at least two tokens after another token",
    }[side]


def is_held_out(row_id: str, share: float) -> bool:
    """Whether the row with this id validates, where so large a share does."""
    digest = hashlib.sha256(row_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


@dataclass(slots=True)
class BatchSampler:
    """The rows of a training, as batches."""

    source: StateSource
    sides: RowSplit
    recipe: Recipe
    _planned: tuple[int, list[tuple[int, ...]]] = field(init=False, default=(-1, []))
    course: Course = field(init=False)

    def __post_init__(self) -> None:
        recipe = self.recipe
        epochs = recipe.epochs if recipe.steps is None else min(recipe.epochs, recipe.steps)
        batches = [len(self._plan(epoch)) for epoch in range(epochs)]
        self.course = course_of(batches, recipe.batches_a_step, recipe.steps)

    def step(self, number: int) -> list[tuple[int, ...]]:
        """The batches of a step, over all processes: indices of rows."""
        epoch, place = self.course.place(number)
        size = self.recipe.batches_a_step
        return self._plan(epoch)[place * size : (place + 1) * size]

    def held_out(self) -> list[tuple[int, ...]]:
        """The batches that validate, the same each time."""
        return self._packed(self.sides.held_out, 0)

    def states(self, rows: Sequence[int]) -> PackedBatch:
        """The rows with their states. Raises StatesError, StoreError."""
        return pack(self.source.rows(rows))

    def supervised(self, rows: Sequence[int], mode: MaskMode, steps: int) -> torch.Tensor:
        """What each step is a mean over, of these rows alone, float64 [steps]; no states are made for it."""
        return counts(self._masks(rows), mode, steps)

    def tokens(self, batches: Sequence[Sequence[int]]) -> int:
        return sum(self.source.lengths[row] for rows in batches for row in rows)

    def ids(self, rows: Sequence[int]) -> list[str]:
        return [self.source.training[row].id for row in rows]

    def _masks(self, rows: Sequence[int]) -> PackedBatch:
        read = [self.source.training[row] for row in rows]
        starts = [0]
        for row in read:
            starts.append(starts[-1] + row.length)
        none = torch.empty(0)
        ids, mask = torch.cat([row.ids for row in read]), torch.cat([row.mask for row in read])
        return PackedBatch(ids, mask, tuple(starts), none, none, tuple(row.id for row in read))

    def _plan(self, epoch: int) -> list[tuple[int, ...]]:
        if self._planned[0] != epoch:
            self._planned = epoch, self._packed(self.sides.training, epoch)
        return self._planned[1]

    def _packed(self, indices: Sequence[int], epoch: int) -> list[tuple[int, ...]]:
        lengths = [self.source.lengths[index] for index in indices]
        planned = plan(lengths, self.recipe.tokens_a_batch, self.recipe.seed, epoch)
        return [tuple(indices[at] for at in rows) for rows in planned]


def rank_shares(batches: Sequence[tuple[int, ...]], rank: int, size: int) -> Iterator[RankShare]:
    """One process's share of batches: every `size`-th, and as many as any other has."""
    for first in range(0, len(batches), size):
        counted = first + rank < len(batches)
        yield RankShare(batches[first + rank] if counted else batches[first], counted)
