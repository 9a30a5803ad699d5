"""A row on its way: the prompt with its ids, and what asking came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pipeline.reconstruct import Asked
from pipeline.records import Completion, Ids, Prompt, Refusal


class Fate(StrEnum):
    """`unknown`: sent, and no answer is on disk. `again`: turned away for now, free of charge."""

    ANSWERED = "answered"
    UNKNOWN = "unknown"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and its ids as rendered."""

    prompt: Prompt
    prompt_ids: Ids


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one row came to: a completion or a refusal where answered; `request` is its identity in the ledger."""

    row: Row
    fate: Fate
    answer: Completion | Refusal | None = None
    request: str | None = None
    sent: bool = True


class Engine(Protocol):
    """Something that answers rows: a hosted API a row at a time, a local model in batches."""

    batch: int
    workers: int
    asked: Asked

    def refusal(self, row: Row) -> Refusal | None:
        """Why this row cannot be asked at all, found before anything is sent."""
        ...

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """One outcome a row, in order. Raises StopError."""
        ...

    def close(self) -> None:
        """Begin nothing new; what is in flight still comes in."""
        ...
