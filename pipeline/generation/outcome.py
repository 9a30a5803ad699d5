"""A row on its way: the prompt with its ids, and what asking came to.

Guarantees: whatever one row's text or answer makes the program stumble over refuses that row, and stops no run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from pipeline.base.redaction import redact
from pipeline.proof.reconstruct import Expected
from pipeline.records import Completion, Ids, Prompt, Reason, Refusal, RefusedError

T = TypeVar("T")


class Status(StrEnum):
    """`unknown`: sent, perhaps billed, and no answer to show for it. `again`: turned away for now, free of charge."""

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
    """What one row came to: a completion or a refusal where answered; `request` is its identity in the ledger.

    `pico`: what it cost in pico-dollars, in the worst case where that is not known; `cost` is None there. `worst_pico`
    is the most that it could cost at the listed price.
    """

    row: Row
    fate: Status
    answer: Completion | Refusal | None = None
    request: str | None = None
    sent: bool = True
    pico: int = 0
    cost: int | None = None
    worst_pico: int = 0


def refusing_errors(make: Callable[[], T]) -> T | Refusal:
    """What `make` gives, or why the row is refused. An error that nobody foresaw would else stop every resume at it."""
    try:
        return make()
    except RefusedError as error:
        return error.refusal
    except MemoryError:
        raise
    except RecursionError:
        return Refusal(Reason.MALFORMED_INPUT, "RecursionError: nested too deeply for this program", field="response")
    except Exception as error:  # noqa: BLE001 - as said above; the raw answer lies in the ledger, for a program that can
        return Refusal(Reason.MALFORMED_INPUT, f"{type(error).__name__}: {redact(str(error), 200)}", field="response")


class Backend(Protocol):
    """Something that answers rows: a hosted API a row at a time, a local model in batches."""

    batch: int
    workers: int
    asked: Expected

    def refusal(self, row: Row) -> Refusal | None:
        """Why this row cannot be asked at all, found before anything is sent."""
        ...

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """One outcome a row, in order. Raises StopError."""
        ...

    def close(self) -> None:
        """Begin nothing new; what is in flight still comes in."""
        ...
