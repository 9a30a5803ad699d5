"""Rows with their states, packed end to end into batches.

Guarantees: a batch records where each row starts, so that nothing attends across; nothing is padded, cut or split.
Lengths, seed and epoch alone decide which rows go together, the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

OPEN = 64
"""Batches that still take rows: enough to fill nearly all of each, and few enough to search."""


class PackingError(Exception):
    """Rows that contradict each other or their own states."""


@dataclass(frozen=True, slots=True)
class RowStates:
    """One row and the target's hidden states of it.

    `ids` [T] int64 are prompt ids and output ids as they lie in the row; `mask` [T] is True where a token was emitted.
    `aux` [T, 3h] are the residual stream after the low, mid and high layer, before any norm, side by side. `last` [M,
    h] is the target's last state AFTER its final norm, ready for its head, at the M positions where `mask` is True and
    no others. h is the target's hidden size.
    """

    id: str
    ids: torch.Tensor
    mask: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor

    @property
    def length(self) -> int:
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows end to end, N tokens in all.

    Row i is at [starts[i], starts[i + 1]). Shapes as in RowStates, with T = N. `last` holds the states of all emitted
    positions in order: the j-th True of `mask` is its row j.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    starts: tuple[int, ...]
    aux: torch.Tensor
    last: torch.Tensor
    row_ids: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return self.starts[-1]

    def to(self, device: torch.device | str) -> PackedBatch:
        """Return the batch on another device."""
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in ("ids", "mask", "aux", "last")}
        return replace(self, **moved)


def pack(rows: Sequence[RowStates]) -> PackedBatch:
    """Pack the rows in this order.

    Raises PackingError for no rows, or rows that contradict themselves.
    """
    if not rows:
        raise PackingError("a batch of no rows")
    for row in rows:
        _check(row, rows[0])
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + row.length)
    return PackedBatch(
        ids=torch.cat([row.ids for row in rows]),
        mask=torch.cat([row.mask for row in rows]),
        starts=tuple(starts),
        aux=torch.cat([row.aux for row in rows]),
        last=torch.cat([row.last for row in rows]),
        row_ids=tuple(row.id for row in rows),
    )


def plan(lengths: Sequence[int], tokens_a_batch: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """Return the batches of one epoch, as indices of rows.

    Each row that fits is in one batch, and no batch exceeds `tokens_a_batch` tokens. Seed and epoch alone decide the
    order. A row goes into the first open batch with room for it, in drawn order. Rows longer than a batch are in none;
    the caller counts them.
    """
    order = [index for index, length in enumerate(lengths) if 0 < length <= tokens_a_batch]
    generator = random.Random(f"{seed}/{epoch}")  # noqa: S311 - an order that anyone can draw again, no secret
    generator.shuffle(order)
    packed = _first_fit(order, lengths, tokens_a_batch)
    generator.shuffle(packed)
    return packed


def _first_fit(order: Sequence[int], lengths: Sequence[int], room: int) -> list[tuple[int, ...]]:
    done: list[tuple[int, ...]] = []
    filling: list[tuple[int, list[int]]] = []  # tokens left, rows
    for index in order:
        length = lengths[index]
        at = next((at for at, (left, _) in enumerate(filling) if left >= length), None)
        if at is None:
            filling.append((room - length, [index]))
        else:
            left, rows = filling[at]
            filling[at] = (left - length, [*rows, index])
        if len(filling) > OPEN:
            fullest = min(range(len(filling)), key=lambda place: filling[place][0])
            done.append(tuple(filling.pop(fullest)[1]))
    return done + [tuple(rows) for _, rows in filling]


def _check(row: RowStates, first: RowStates) -> None:
    emitted, width = int(row.mask.sum()), int(row.last.shape[-1])
    shapes = {
        "mask": (tuple(row.mask.shape), (row.length,)),
        "aux": (tuple(row.aux.shape), (row.length, 3 * width)),
        "last": (tuple(row.last.shape), (emitted, width)),
    }
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise PackingError(f"row {row.id!r}: {name} has the shape {list(found)}, not {list(expected)}")
    if width != first.last.shape[-1]:
        raise PackingError(
            f"rows {first.id!r} and {row.id!r} have states of {first.last.shape[-1]} and {width} numbers"
        )
