"""Where a training stands: which epoch and batches a step of the optimiser is of, and how fast it learns there.

Guarantees: all of it follows from the number of the step alone, so that a run that goes on needs to know nothing else.
The rate rises linearly over the warm-up and falls along a cosine to zero: step s of S, counted from 0, has
peak * (s + 1) / W below W and peak * (1 + cos(pi * (s - W) / (S - W))) / 2 from there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of each of `steps` steps, of which the first `warmup` rise to `peak`."""

    peak: float
    steps: int
    warmup: int

    def rate(self, step: int) -> float:
        """The rate of step `step`, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def schedule_of(peak: float, steps: int, warmup_share: float) -> Schedule:
    """The schedule of a run of `steps` steps; a share above zero is one step at least."""
    return Schedule(peak, steps, min(steps, math.ceil(steps * warmup_share)))


@dataclass(frozen=True, slots=True)
class Course:
    """How many steps each epoch has; `most` ends the course before its epochs do."""

    epochs: tuple[int, ...]
    most: int | None = None

    @property
    def steps(self) -> int:
        whole = sum(self.epochs)
        return whole if self.most is None else min(whole, self.most)

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of a step and its number in it, both from 0. Raises IndexError beyond the course."""
        if not 0 <= step < self.steps:
            raise IndexError(step)
        ends = [*accumulate(self.epochs)]
        epoch = bisect_right(ends, step)
        return epoch, step - (ends[epoch] - self.epochs[epoch])


def course_of(batches: Sequence[int], batches_a_step: int, most: int | None = None) -> Course:
    """The course of epochs of so many batches each; the last step of an epoch may have fewer."""
    return Course(tuple(-(-number // batches_a_step) for number in batches), most)
