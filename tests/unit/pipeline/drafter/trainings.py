"""Random states and small trainings for the tests here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.layers import Layers
from pipeline.drafter.training.distributed import Sharing, World
from pipeline.drafter.training.packing import RowStates
from pipeline.drafter.training.recipe import Recipe
from pipeline.drafter.training.sampler import BatchSampler, split_rows
from pipeline.drafter.training.trainer import Training
from pipeline.records import Evidence
from tests.unit.pipeline.drafter.drafters import TARGET_WIDTH, VOCABULARY, drafter, row, teacher

ALONE = World(0, 1, torch.device("cpu"))
LENGTHS = [(3, 5), (2, 9), (4, 3), (1, 6), (5, 7), (2, 2), (3, 8), (2, 4)]
"""Prompt and emitted tokens of eight rows: 66 tokens, 44 of them emitted."""


class DrawnStates:
    """Rows with random states, in memory.

    `spoilt` rows have a state that is no number.
    """

    layers: Layers = (1, 3, 4)
    hidden_size = TARGET_WIDTH
    vocab_size = VOCABULARY

    def __init__(self, lengths: Sequence[tuple[int, int]] = LENGTHS, spoilt: Sequence[int] = ()) -> None:
        self._rows = [row(prompt, answer, seed) for seed, (prompt, answer) in enumerate(lengths)]
        for index in spoilt:
            self._rows[index].last[0, 0] = torch.nan
        self.training = [TrainingRow(each.id, each.ids, each.mask, Evidence.ENGINE_IDS, "") for each in self._rows]
        self.lengths = [each.length for each in self._rows]

    def rows(self, indices: Sequence[int]) -> list[RowStates]:
        return [self._rows[index] for index in indices]


def recipe(**changes: object) -> Recipe:
    """Return two epochs of one batch of all rows a step.

    At a rate that shows; nothing is held out.
    """
    given = Recipe(ttt_length=3, tokens_a_batch=100, learning_rate=0.01, epochs=2, held_out=0.0, draft_vocabulary=24)
    return replace(given, **changes)  # type: ignore[arg-type]  # the caller names Recipe's own fields


def training(source: DrawnStates | None = None, seed: int = 0, **changes: object) -> Training:
    """A training of a drafter with drawn weights, alone."""
    states, chosen = source or DrawnStates(), recipe(**changes)
    made = drafter(seed)
    sampler = BatchSampler(states, split_rows(states, chosen), chosen)
    return Training(made, teacher(made), sampler, ALONE, Sharing.DDP)


def weights(found: Training) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in found.drafter.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of tensors are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
