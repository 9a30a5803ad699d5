"""The loss of training-time test: supervised rows, teacher, fused cross-entropy.

Row r at step k reads token r + 1 + k and predicts token r + 2 + k. Its teacher is the target's distribution at position
p = r + 1 + k. A mode is therefore a set of teacher positions, the same for all steps; step k has those whose row
p - 1 - k lies in the same document.

Guarantees of the masks: the default mode supervises exactly what serving runs: token p was emitted, and so was the
predicted one. Row a - 1, from which the first draft after a prompt is made, is trained; nothing after the end token is,
nor a prefilled <think>. The other two modes are those of public trainers, each off by one (the table is in SpecForge's
issue 885).

Guarantees of the loss: soft cross-entropy over the draft vocabulary, -sum softmax(teacher) * log softmax(drafter) for
each row; `kl` subtracts the teacher's entropy. A chunk of teacher positions at a time is computed, with its teacher
once for all steps and its gradients at once, so that no [rows, vocabulary] tensor outlives a chunk. The target's logits
over its whole vocabulary are computed, a chunk at a time, only where needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pipeline.drafter.training.packing import PackedBatch


CHUNK_BYTES = {"cpu": 4 * 1024 * 1024}
"""Bytes of one chunk's logits, all steps together: on a CPU what its caches hold."""
CHUNK_BYTES_ELSEWHERE = 128 * 1024 * 1024
LEAST_POSITIONS = 16
"""Fewest positions in a chunk, however large the vocabulary: fewer would spend the time on reading the head."""


class MaskMode(StrEnum):
    """Whose set of supervised rows is used."""

    ALIGNED = "aligned"
    SPECFORGE = "specforge"
    SPECULATORS = "speculators"


def teacher_positions(batch: PackedBatch, mode: MaskMode) -> torch.Tensor:
    """Return the positions whose target distribution teaches, int64 [S], ascending.

    Never the first of a document: the row that predicts its successor would stand before the document. Mode `specforge`
    still includes positions whose likeliest token is outside the draft vocabulary; the loss leaves them out.
    """
    mask = batch.mask
    starts = torch.tensor(batch.starts, device=batch.ids.device)
    first, last = torch.zeros_like(mask), torch.zeros_like(mask)
    first[starts[:-1]] = True
    last[starts[1:] - 1] = True
    if mode is MaskMode.SPECULATORS:
        return (mask & ~first).nonzero()[:, 0]
    beside = torch.zeros_like(mask)
    if mode is MaskMode.ALIGNED:
        beside[:-1] = mask[1:]
        return (mask & beside & ~first & ~last).nonzero()[:, 0]
    beside[1:] = mask[:-1]
    return (beside & ~first).nonzero()[:, 0]


def document_starts(batch: PackedBatch) -> torch.Tensor:
    """Return the start of each position's document, int64 [N]."""
    starts = torch.tensor(batch.starts, device=batch.ids.device)
    return starts[:-1].repeat_interleave(starts.diff())


def present(batch: PackedBatch, positions: torch.Tensor, steps: int) -> torch.Tensor:
    """Return which steps have the row of each teacher position.

    Bool [steps, S].
    """
    rows = positions[None] - 1 - torch.arange(steps, device=positions.device)[:, None]
    return rows >= document_starts(batch)[positions]


def counts(batch: PackedBatch, mode: MaskMode, steps: int) -> torch.Tensor:
    """Return how many rows each step averages over, float64 [steps].

    Supervised rows; in mode `specforge` all rows. Sums over several batches average over all of them.
    """
    if mode is MaskMode.SPECFORGE:
        return torch.full((steps,), float(batch.tokens), dtype=torch.float64)
    return present(batch, teacher_positions(batch, mode), steps).sum(1).double().cpu()


def scales(total: torch.Tensor, mode: MaskMode, decay: float) -> torch.Tensor:
    """Return each step's factor for its sum of losses.

    Float64 [steps]: decay ** k over the mean's denominator. `total` is `counts` over everything that one optimiser step
    sees. A step without rows has factor 0.
    """
    smallest = 1e-5 if mode is MaskMode.SPECULATORS else 0.0
    weights = decay ** torch.arange(len(total), dtype=torch.float64)
    return torch.where(total > 0, weights / (total + smallest).clamp(min=1e-5), torch.zeros_like(weights))


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's head, whole and over the draft vocabulary.

    All rows [V, h], and draft rows [D, h] in the order of draft ids.
    """

    head: torch.Tensor
    draft_rows: torch.Tensor
    t2d: torch.Tensor
    target_ids: torch.Tensor

    @property
    def is_whole(self) -> bool:
        """Whether the draft vocabulary contains every token."""
        return len(self.target_ids) == len(self.head)


def teacher_of(head: torch.Tensor, d2t: torch.Tensor, t2d: torch.Tensor) -> Teacher:
    """Return the teacher of a draft vocabulary.

    The head is shared, not copied, where the vocabulary is whole.
    """
    ids = d2t + torch.arange(len(d2t), device=d2t.device)
    frozen = head.detach()
    rows = frozen if len(ids) == len(head) else frozen[ids.to(head.device)]
    return Teacher(frozen, rows, t2d.to(head.device), ids.to(head.device))


@dataclass(frozen=True, slots=True)
class Scored:
    """Loss with gradient, and figures per step, float64 [K].

    Figures: sums of rows' losses, rows right by argmax, rows.
    """

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
    """Return the loss of drafter states against the teacher.

    Drafter states [K, S, h] go through `head` [D, h], the target's last states [S, h'] through the teacher's. `present`
    bool [K, S] says which rows exist. `named_only` leaves out positions whose likeliest token the draft vocabulary
    lacks; `exact` counts these as wrong. The loss is the sum over k of scales[k] * sums[k].
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
        # The dtype of the products: autocast's where it is on.
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
        weight = head.to(dtype)
        grads = torch.empty_like(states), torch.zeros_like(head, dtype=_wide(head[:0]).dtype)
        figures = torch.zeros(3, steps, dtype=torch.float64, device=states.device)
        room = CHUNK_BYTES.get(kind, CHUNK_BYTES_ELSEWHERE)
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
        by_step = figures.unbind()
        ctx.mark_non_differentiable(*by_step)
        return loss, *by_step

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_figures: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        states, head = ctx.saved_tensors
        # In place: they are this function's own, and torch refuses a second backward pass over the same graph.
        return states.mul_(grad), head.mul_(grad).to(ctx.dtype), None, None, None, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _taught(
    last: torch.Tensor, teacher: Teacher, present: torch.Tensor, options: _Options
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute what the teacher says of a chunk.

    Its distribution [C, D], which rows count [K, C], and whose likeliest token the draft vocabulary has [C].
    """
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
    """Add a chunk's figures; return the slope by logits.

    The slope of each row's loss, [K * C, D].
    """
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
