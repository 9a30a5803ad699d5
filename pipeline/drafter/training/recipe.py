"""The recipe of a training, and its schedule by step.

Guarantees: two runs of the same recipe on the same rows, states, machine and number of processes give the same weights,
bit for bit on a CPU. Epoch, batches and learning rate follow from the number of a step alone, so that a continued run
needs nothing else. Defaults are EAGLE's where public trainers agree: 7 steps weighing 0.8 ** k, AdamW, clipping at 0.5.
Only the supervised rows differ from theirs: those that serving runs, of which their mask misses the first.

The rate rises linearly over the warm-up and falls along a cosine to zero: step s of S, counted from 0, has
peak * (s + 1) / W below W and peak * (1 + cos(pi * (s - W) / (S - W))) / 2 from there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import accumulate

from pipeline.drafter.model.config import STEP_DECAY, TTT_LENGTH
from pipeline.drafter.model.loss import MaskMode
from pipeline.records import Json

DRAFT_VOCABULARY = 32_000
"""The size that most published drafters have; a target with fewer tokens is drafted whole."""
MOST_STEPS = 64
SEEDS = range(-(2**63), 2**64)
"""Seeds that torch accepts."""
SEEDS_TOLD = f"a seed: give a whole number from {SEEDS[0]} to {SEEDS[-1]}"


class RecipeError(Exception):
    """A number that no training can have."""


class Precision(StrEnum):
    """Dtype that the drafter computes in.

    Weights and their moments are float32 either way.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights, except rows and target.

    `tokens_a_batch` is what fits into memory at once; `batches_a_step` of them, over all processes together, make one
    optimiser step. `warmup` is the share of all steps in which the rate rises. `steps` ends the training before its
    `epochs` do. `held_out` is the share of rows that validate and never train.
    """

    ttt_length: int = TTT_LENGTH
    decay: float = STEP_DECAY
    mode: MaskMode = MaskMode.ALIGNED
    tokens_a_batch: int = 4096
    batches_a_step: int = 1
    learning_rate: float = 1e-4
    warmup: float = 0.015
    epochs: int = 10
    steps: int | None = None
    clip: float = 0.5
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    precision: Precision = Precision.FLOAT32
    draft_vocabulary: int = DRAFT_VOCABULARY
    held_out: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one = ("tokens_a_batch", "batches_a_step", "epochs", "draft_vocabulary")
        limits = (
            ("ttt_length", 1 <= self.ttt_length <= MOST_STEPS, f"between 1 and {MOST_STEPS}"),
            ("decay", 0 < self.decay <= 1, "above 0 and at most 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0 and finite"),
            ("warmup", 0 <= self.warmup < 1, "a share below 1"),
            ("clip", 0 < self.clip < math.inf, "above 0 and finite (1e9 clips nothing)"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "finite and 0 or above"),
            ("held_out", 0 <= self.held_out < 1, "a share below 1"),
            ("betas", all(0 <= beta < 1 for beta in self.betas), "two numbers of at least 0 and below 1"),
            *((name, getattr(self, name) >= 1, "at least 1") for name in at_least_one),
            ("seed", self.seed in SEEDS, SEEDS_TOLD),
            ("steps", self.steps is None or self.steps >= 1, "at least 1"),
        )
        for name, is_fine, limit in limits:
            if not is_fine:
                raise RecipeError(f"--{name.replace('_', '-')} {getattr(self, name)} is not {limit}")

    def document(self) -> dict[str, Json]:
        """Return the recipe as a manifest records it."""
        found = asdict(self)
        return found | {"betas": [*self.betas], "mode": str(self.mode), "precision": str(self.precision)}


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of each step.

    The first `warmup` of `steps` steps rise to `peak`.
    """

    peak: float
    steps: int
    warmup: int

    def rate(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def schedule_of(peak: float, steps: int, warmup_share: float) -> Schedule:
    """Return the schedule of a run.

    A warm-up share above zero is at least one step.
    """
    return Schedule(peak, steps, min(steps, math.ceil(steps * warmup_share)))


@dataclass(frozen=True, slots=True)
class Course:
    """Steps of each epoch; `most` ends the course early."""

    epochs: tuple[int, ...]
    most: int | None = None

    @property
    def steps(self) -> int:
        whole = sum(self.epochs)
        return whole if self.most is None else min(whole, self.most)

    def place(self, step: int) -> tuple[int, int]:
        """Return a step's epoch and its number there.

        Both count from 0. Raises IndexError beyond the course.
        """
        if not 0 <= step < self.steps:
            raise IndexError(step)
        ends = [*accumulate(self.epochs)]
        epoch = bisect_right(ends, step)
        return epoch, step - (ends[epoch] - self.epochs[epoch])


def course_of(batches: Sequence[int], batches_a_step: int, most: int | None = None) -> Course:
    """Return the course of epochs with these numbers of batches.

    The last step of an epoch may have fewer than `batches_a_step`.
    """
    return Course(tuple(-(-number // batches_a_step) for number in batches), most)
