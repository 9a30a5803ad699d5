"""Which rows are supervised at which step of training-time test, and what each step's sum is divided by.

Row r at step k reads token r + 1 + k and predicts token r + 2 + k; its teacher is the target's distribution at position
p = r + 1 + k. So a mode is a set of teacher positions, the same for all steps, and step k has those whose row
p - 1 - k lies in the same document.

Guarantees: in the default mode exactly what serving asks: token p was emitted, and so was the predicted one. Row a - 1,
from which the first draft after a prompt is made, is trained; nothing after the end token is, nor a prefilled <think>.
The other two modes are what public trainers do (the whole table is in SpecForge's issue 885), off by one each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pipeline.drafter.training.packing import Batch


class MaskMode(StrEnum):
    """Whose set of supervised rows is taken."""

    ALIGNED = "aligned"
    SPECFORGE = "specforge"
    SPECULATORS = "speculators"


def teacher_positions(batch: Batch, mode: MaskMode) -> torch.Tensor:
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


def document_starts(batch: Batch) -> torch.Tensor:
    """Where the document of each position begins, int64 [N]."""
    starts = torch.tensor(batch.starts, device=batch.ids.device)
    return starts[:-1].repeat_interleave(starts.diff())


def present(batch: Batch, positions: torch.Tensor, steps: int) -> torch.Tensor:
    """Whether step k has the row of each teacher position, bool [steps, S]."""
    rows = positions[None] - 1 - torch.arange(steps, device=positions.device)[:, None]
    return rows >= document_starts(batch)[positions]


def counts(batch: Batch, mode: MaskMode, steps: int) -> torch.Tensor:
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


def _borders(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether a position is the first of its document, and whether it is the last, bool [N] each."""
    starts = torch.tensor(batch.starts, device=batch.ids.device)
    first, last = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
    first[starts[:-1]] = True
    last[starts[1:] - 1] = True
    return first, last
