"""The trainer: one optimiser step after another.

Guarantees: each step's losses are means over the supervised rows of all its batches in all processes, counted from
masks before anything is computed; so accumulating, packing and sharing the work change results by rounding alone. A
loss or gradient that is not finite changes no weight: the step is not taken, and its rows are named. On a CPU the same
training gives the same bits, stopped and continued or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from pipeline.drafter.model.loss import MaskMode, scales
from pipeline.drafter.training import distributed
from pipeline.drafter.training.checkpoints import CheckpointError, Snapshot
from pipeline.drafter.training.distributed import Sharing, World
from pipeline.drafter.training.metrics import Figures, figures_of
from pipeline.drafter.training.recipe import Precision, Schedule, schedule_of
from pipeline.drafter.training.sampler import BatchSampler, RankShare, rank_shares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.drafter.model.loss import Teacher
    from pipeline.drafter.model.model import Drafter
    from pipeline.drafter.training.packing import PackedBatch
    from pipeline.records import Json

MOST_NAMED = 20
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class NotFiniteError(Exception):
    """A loss or gradient that is not finite.

    `rows` are those of its step. No weight was changed by it.
    """

    def __init__(self, message: str, step: int, rows: Sequence[str] = ()) -> None:
        self.rows, self.step = tuple(rows), step
        super().__init__(message)

    @classmethod
    def of_step(cls, what: str, step: int, rows: Sequence[str]) -> NotFiniteError:
        """Return the error of a training step."""
        more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        named = ", ".join(repr(row) for row in rows[:MOST_NAMED])
        message = f"the {what} of step {step + 1} is not finite, and the step was not taken; its rows: {named}{more}"
        return cls(message, step, rows)


class DrafterWithLoss(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Drafter and loss as one module, which processes share."""

    def __init__(self, drafter: Drafter, mode: MaskMode) -> None:
        super().__init__()
        self.drafter = drafter
        self.mode = mode

    def forward(
        self, batch: PackedBatch, teacher: Teacher, weights: torch.Tensor, *, exact: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and figures by step, float64 [3, K].

        Figures: sums of losses, rows right, rows.
        """
        result = self.drafter(batch, teacher, self.mode, weights, exact=exact)
        return result.loss, torch.stack([result.sums, result.correct, result.counts]).double()


@dataclass(frozen=True, slots=True)
class StepReport:
    """Figures of one step, counted from 0.

    `gradient` is the norm before clipping, `tokens` those of all batches.
    """

    step: int
    epoch: int
    figures: Figures
    rate: float
    gradient: float
    tokens: int
    seconds: float

    def document(self) -> dict[str, Json]:
        return {
            "epoch": self.epoch,
            **self.figures.document(),
            "learning_rate": self.rate,
            "gradient_norm": self.gradient,
            "tokens": self.tokens,
            "tokens_a_second": round(self.tokens / max(self.seconds, 1e-9), 1),
        }


class Training:
    """A training that stands before step `step`."""

    def __init__(
        self, drafter: Drafter, teacher: Teacher, sampler: BatchSampler, world: World, sharing: Sharing
    ) -> None:
        """Share the drafter between the processes.

        It must be on the world's device already.
        """
        self.sampler, self.world, self.recipe = sampler, world, sampler.recipe
        self.teacher = teacher
        embedding = drafter.embedding
        drafter.attach(torch.empty(0))  # frozen and the same everywhere, so it is neither sent nor split
        self.module = distributed.share(DrafterWithLoss(drafter, self.recipe.mode), world, sharing)
        drafter.attach(embedding)
        self.drafter = drafter
        recipe = self.recipe
        self.optimizer = torch.optim.AdamW(
            drafter.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
        )
        self.schedule: Schedule = schedule_of(recipe.learning_rate, sampler.course.steps, recipe.warmup)
        self.step = 0

    @property
    def done(self) -> bool:
        return self.step >= self.sampler.course.steps

    def take_step(self) -> StepReport:
        """Take one optimiser step.

        Raises NotFiniteError, in all processes alike; then nothing has changed.
        """
        begun = time.perf_counter()
        batches = self.sampler.step(self.step)
        shares = [*rank_shares(batches, self.world.rank, self.world.size)]
        divisors = self._divisors(shares)
        self.module.train()
        totals, broken = self._accumulate(shares, divisors)
        self._require_finite("loss", batches, broken, finite=bool(totals.isfinite().all()))
        norm = nn.utils.clip_grad_norm_(self.drafter.parameters(), self.recipe.clip)
        gradient = float(distributed.whole(norm))
        self._require_finite("gradient", batches, [], finite=bool(torch.tensor(gradient).isfinite()))
        rate = self.schedule.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        figures = _figures(totals, divisors, self.recipe.decay)
        epoch, _ = self.sampler.course.place(self.step)
        tokens, seconds = self.sampler.tokens(batches), time.perf_counter() - begun
        report = StepReport(self.step, epoch, figures, rate, gradient, tokens, seconds)
        self.step += 1
        return report

    def validate(self) -> Figures | None:
        """Return the figures over all held-out rows; None without any.

        A row is right where the drafter names the target's likeliest token of all, as in serving.
        """
        batches = self.sampler.held_out()
        if not batches:
            return None
        shares = [*rank_shares(batches, self.world.rank, self.world.size)]
        divisors = self._divisors(shares)
        ones = torch.ones(self.recipe.ttt_length, dtype=torch.float64, device=self.world.device)
        totals = torch.zeros(3, self.recipe.ttt_length, dtype=torch.float64)
        self.module.eval()
        with torch.no_grad(), self._computing():
            for share in shares:
                batch = self.sampler.states(share.rows).to(self.world.device)
                _, figures = self.module(batch, self.teacher, ones, exact=True)
                totals += figures.cpu() * share.counts
        distributed.settle(self.module)
        totals = self.world.sum(totals)
        if not bool(totals.isfinite().all()):
            message = f"the loss of the rows held out is not finite after step {self.step}: the training has diverged"
            raise NotFiniteError(f"{message}. Begin anew with a lower --learning-rate", self.step)
        return _figures(totals, divisors, self.recipe.decay)

    def snapshot(self, description: Mapping[str, Json]) -> Snapshot:
        """Return everything for a checkpoint; every process must call it."""
        weights = {name: distributed.whole(value).cpu() for name, value in self.drafter.state_dict().items()}
        moments: dict[str, torch.Tensor] = {}
        for name, parameter in self.drafter.named_parameters():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                moments[f"{name}.{moment}"] = distributed.whole(value).cpu()
        states = {"cpu": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.world.device)
        random = {
            f"{kind}.{rank}": state
            for rank, found in enumerate(self.world.gathered(states))
            for kind, state in found.items()
        }
        return Snapshot(self.step, weights, moments, random, description)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a checkpoint of this training.

        Raises CheckpointError where it is of another drafter.
        """
        own_weights = self.drafter.state_dict()
        shapes = {name: value.shape for name, value in snapshot.drafter.items()}
        differing = sorted(name for name, value in own_weights.items() if shapes.pop(name, None) != value.shape)
        if different := differing or sorted(shapes):
            raise CheckpointError(f"the checkpoint after step {snapshot.step} is of another drafter: {different[0]}")
        with torch.no_grad():
            for name, value in own_weights.items():
                value.copy_(distributed.like(snapshot.drafter[name], value))
        for name, parameter in self.drafter.named_parameters():
            found = {moment: snapshot.optimizer.get(f"{name}.{moment}") for moment in MOMENTS}
            self.optimizer.state[parameter] = {
                moment: value.clone() if moment == "step" else distributed.like(value, parameter).clone()
                for moment, value in found.items()
                if value is not None
            }
        if (state := snapshot.random.get(f"cpu.{self.world.rank}")) is not None:
            torch.set_rng_state(state)
        if (state := snapshot.random.get(f"cuda.{self.world.rank}")) is not None and self.world.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.world.device)
        self.step = snapshot.step

    def _accumulate(self, shares: Sequence[RankShare], divisors: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        """Run forward and backward over this process's share.

        Returns figures over all processes, and this process's rows whose loss is not finite.
        """
        # Gradients are averaged over the processes, so each counts as often as there are processes.
        weights = scales(divisors, self.recipe.mode, self.recipe.decay).to(self.world.device) * self.world.size
        totals = torch.zeros(3, len(weights), dtype=torch.float64)
        broken: list[str] = []
        for number, share in enumerate(shares, start=1):
            batch = self.sampler.states(share.rows).to(self.world.device)
            with distributed.accumulating(self.module, last=number == len(shares)):
                with self._computing():
                    loss, figures = self.module(batch, self.teacher, weights if share.counts else weights * 0)
                loss.backward()
            if share.counts:
                totals += figures.cpu()
                broken += [] if bool(figures.isfinite().all()) else batch.row_ids
        return self.world.sum(totals), broken

    def _require_finite(self, what: str, batches: Sequence[Sequence[int]], broken: list[str], *, finite: bool) -> None:
        """Drop the gradients and raise NotFiniteError unless finite.

        `broken` are this process's rows whose loss is not finite; without any, all rows of the step are named.
        """
        if finite:
            return
        self.optimizer.zero_grad(set_to_none=True)
        rows = [row for found in self.world.gathered(broken) for row in found]
        named = rows or [row for batch in batches for row in self.sampler.ids(batch)]
        raise NotFiniteError.of_step(what, self.step, named)

    def _divisors(self, shares: Sequence[RankShare]) -> torch.Tensor:
        """Return what each step averages over, float64 [K].

        In all processes together.
        """
        steps = self.recipe.ttt_length
        total = torch.zeros(steps, dtype=torch.float64)
        for share in shares:
            if share.counts:
                total += self.sampler.supervised(share.rows, self.recipe.mode, steps)
        return self.world.sum(total)

    def _computing(self) -> AbstractContextManager[None]:
        if self.recipe.precision is Precision.FLOAT32:
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16)  # type: ignore[no-any-return]  # torch is untyped


def _figures(totals: torch.Tensor, divisors: torch.Tensor, decay: float) -> Figures:
    sums, correct, rows = totals.tolist()
    return figures_of(sums, correct, rows, divisors.tolist(), decay)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make operations on a CPU repeatable, bit for bit."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(mode=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads what it did not write
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]
