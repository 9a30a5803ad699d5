"""The loss of all steps at once: soft cross-entropy over the draft vocabulary, fused with the head that makes it.

Guarantees: a chunk of teacher positions at a time, its teacher computed once for all steps, and its gradients right
away, so that no tensor of [rows, vocabulary] outlives a chunk; the target's logits over its whole vocabulary are made,
a chunk at a time, only where they are asked for. Loss of one row: -sum over the draft vocabulary of
softmax(teacher) * log softmax(drafter); `kl` subtracts the teacher's entropy.

Which rows are supervised at which step of training-time test, and what each step's sum is divided by.

Row r at step k reads token r + 1 + k and predicts token r + 2 + k; its teacher is the target's distribution at position
p = r + 1 + k. So a mode is a set of teacher positions, the same for all steps, and step k has those whose row
p - 1 - k lies in the same document.

Guarantees: in the default mode exactly what serving asks: token p was emitted, and so was the predicted one. Row a - 1,
from which the first draft after a prompt is made, is trained; nothing after the end token is, nor a prefilled <think>.
The other two modes are what public trainers do (the whole table is in SpecForge's issue 885), off by one each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pipeline.drafter.training.packing import PackedBatch


CHUNK_BYTES = {"cpu": 4 * 1024 * 1024}
"""What the logits of one chunk may take, of all steps together: on a CPU what its caches hold."""
CHUNK_BYTES_ELSEWHERE = 128 * 1024 * 1024
LEAST_POSITIONS = 16
"""Of a chunk, however large the vocabulary is: fewer would spend the time on reading the head."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's head: all rows [V, h], and those of the draft vocabulary [D, h], in the order of draft ids."""

    head: torch.Tensor
    draft_rows: torch.Tensor
    t2d: torch.Tensor
    target_ids: torch.Tensor

    @property
    def is_whole(self) -> bool:
        """Whether the drafter can name every token."""
        return len(self.target_ids) == len(self.head)


def teacher_of(head: torch.Tensor, d2t: torch.Tensor, t2d: torch.Tensor) -> Teacher:
    """The teacher of a draft vocabulary; the head is shared, not copied, where the vocabulary is whole."""
    ids = d2t + torch.arange(len(d2t), device=d2t.device)
    frozen = head.detach()
    rows = frozen if len(ids) == len(head) else frozen[ids.to(head.device)]
    return Teacher(frozen, rows, t2d.to(head.device), ids.to(head.device))


@dataclass(frozen=True, slots=True)
class Scored:
    """`loss` has the gradient; per step, float64 [K]: sums of rows' losses, rows right by argmax, rows."""

    loss: torch.Tensor
    sums: torch.Tensor
    correct: torch.Tensor
    counted: torch.Tensor


def score(
    states: torch.Tensor,
    head: torch.Tensor,
    last: torch.Tensor,
    teacher: Teacher,
    present: torch.Tensor,
    scales: torch.Tensor,
    *,
    kl: bool = False,
    named_only: bool = False,
    exact: bool = False,
) -> Scored:
    """The loss of drafter states [K, S, h] through `head` [D, h] against target states [S, h'] through the teacher.

    `present` bool [K, S] says which rows there are. `named_only` leaves out positions whose likeliest token the draft
    vocabulary lacks; `exact` counts these as wrong. The loss is the sum over k of scales[k] * sums[k].
    """
    options = _Options(kl=kl, named_only=named_only, exact=exact)
    loss, sums, correct, counted = _FusedLoss.apply(states, head, last, teacher, present, scales, options)
    return Scored(loss, sums, correct, counted)


@dataclass(frozen=True, slots=True)
class _Options:
    kl: bool
    named_only: bool
    exact: bool


class _FusedLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context is untyped
        states: torch.Tensor,
        head: torch.Tensor,
        last: torch.Tensor,
        teacher: Teacher,
        present: torch.Tensor,
        scales: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, ...]:
        steps, rows, width = states.shape
        dtype = _compute_dtype(states)
        weight = head.to(dtype)
        grads = torch.empty_like(states), torch.zeros_like(head, dtype=_wide(head[:0]).dtype)
        figures = torch.zeros(3, steps, dtype=torch.float64, device=states.device)
        room = CHUNK_BYTES.get(states.device.type, CHUNK_BYTES_ELSEWHERE)
        wanted = max(LEAST_POSITIONS, room // (4 * len(head) * steps))
        for at in range(0, rows, wanted):
            chunk = slice(at, at + wanted)
            target, kept, named = _taught(last[chunk].to(dtype), teacher, present[:, chunk], options)
            piece = states[:, chunk].reshape(-1, width).to(dtype)
            slope = _slope(piece @ weight.T, target, kept, named, figures, options).to(dtype)
            # A row's scale is put on the narrow side of each product: the wide one is read once less.
            factor = (kept * scales.to(target)[:, None]).view(-1, 1).to(dtype)
            grads[0][:, chunk] = (slope @ weight).mul_(factor).view(steps, -1, width)
            piece = piece * factor
            grads[1].addmm_(slope.T, piece) if grads[1].dtype is dtype else grads[1].add_(slope.T @ piece)
        ctx.save_for_backward(*grads)
        ctx.dtype = head.dtype
        loss = (figures[0] * scales.to(figures)).sum().to(_wide(states[:0]).dtype)
        told = figures.unbind()
        ctx.mark_non_differentiable(*told)
        return loss, *told

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_figures: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        states, head = ctx.saved_tensors
        # In place: they are this function's own, and torch refuses a second backward pass over the same graph.
        return states.mul_(grad), head.mul_(grad).to(ctx.dtype), None, None, None, None, None


def _compute_dtype(states: torch.Tensor) -> torch.dtype:
    """What the products are made in: autocast's where that is on."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _taught(
    last: torch.Tensor, teacher: Teacher, present: torch.Tensor, options: _Options
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one chunk: the teacher's distribution [C, D], which rows count [K, C], and which teachers can be named [C]."""
    probabilities = _wide(last @ teacher.draft_rows.to(last.dtype).T).softmax(-1)
    named = torch.ones(len(last), dtype=torch.bool, device=last.device)
    if (options.named_only or options.exact) and not teacher.is_whole:
        named = teacher.t2d[(last @ teacher.head.to(last.dtype).T).argmax(-1)]
    return probabilities, present & named if options.named_only else present, named


def _slope(
    logits: torch.Tensor,
    target: torch.Tensor,
    kept: torch.Tensor,
    named: torch.Tensor,
    figures: torch.Tensor,
    options: _Options,
) -> torch.Tensor:
    """Adds the chunk's figures and gives the slope of each row's loss by its logits, [K * C, D]."""
    steps, rows = kept.shape
    found = _wide(logits).view(steps, rows, -1)
    right = (found.argmax(-1) == target.argmax(-1)) & (named | (not options.exact))
    dot, best = (found * target).sum(-1), found.amax(-1)
    probabilities = found.softmax(-1)
    # The log-sum-exp: the likeliest token's probability is the exponential of its logit minus that.
    losses = best - probabilities.amax(-1).log() - dot
    if options.kl:
        losses = losses + torch.special.xlogy(target, target).sum(-1)
    for place, value in enumerate((losses, right, torch.ones_like(losses))):
        figures[place] += torch.where(kept, value, 0).sum(1).double()
    return probabilities.sub_(target).view(steps * rows, -1)


class MaskMode(StrEnum):
    """Whose set of supervised rows is taken."""

    ALIGNED = "aligned"
    SPECFORGE = "specforge"
    SPECULATORS = "speculators"


def teacher_positions(batch: PackedBatch, mode: MaskMode) -> torch.Tensor:
    """The positions whose target distribution teaches, int64 [S], ascending.

    Never the first of a document: the row that predicts what follows it would stand before the document.
    In mode `specforge` those whose likeliest token is outside the draft vocabulary are still among them: whoever has
    the target's logits leaves them out.
    """
    mask = batch.mask
    first, last = _borders(batch)
    if mode is MaskMode.SPECULATORS:
        return (mask & ~first).nonzero()[:, 0]
    beside = torch.zeros_like(mask)
    if mode is MaskMode.ALIGNED:
        beside[:-1] = mask[1:]
        return (mask & beside & ~first & ~last).nonzero()[:, 0]
    beside[1:] = mask[:-1]
    return (beside & ~first).nonzero()[:, 0]


def document_starts(batch: PackedBatch) -> torch.Tensor:
    """Where the document of each position begins, int64 [N]."""
    starts = torch.tensor(batch.starts, device=batch.ids.device)
    return starts[:-1].repeat_interleave(starts.diff())


def present(batch: PackedBatch, positions: torch.Tensor, steps: int) -> torch.Tensor:
    """Whether step k has the row of each teacher position, bool [steps, S]."""
    rows = positions[None] - 1 - torch.arange(steps, device=positions.device)[:, None]
    return rows >= document_starts(batch)[positions]


def counts(batch: PackedBatch, mode: MaskMode, steps: int) -> torch.Tensor:
    """How many rows each step is a mean over, float64 [steps]; sums of several batches are a mean over all of them.

    Supervised rows; in mode `specforge` all rows, masked ones too.
    """
    if mode is MaskMode.SPECFORGE:
        return torch.full((steps,), float(batch.tokens), dtype=torch.float64)
    return present(batch, teacher_positions(batch, mode), steps).sum(1).double().cpu()


def scales(total: torch.Tensor, mode: MaskMode, decay: float) -> torch.Tensor:
    """What each step's sum of losses is multiplied with, float64 [steps]: decay ** k over the mean's denominator.

    `total` is `counts` over everything that one optimiser step sees. A step without rows counts nothing.
    """
    smallest = 1e-5 if mode is MaskMode.SPECULATORS else 0.0
    weights = decay ** torch.arange(len(total), dtype=torch.float64)
    return torch.where(total > 0, weights / (total + smallest).clamp(min=1e-5), torch.zeros_like(weights))


def _borders(batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether a position is the first of its document, and whether it is the last, bool [N] each."""
    starts = torch.tensor(batch.starts, device=batch.ids.device)
    first, last = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
    first[starts[:-1]] = True
    last[starts[1:] - 1] = True
    return first, last
