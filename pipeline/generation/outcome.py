"""Rows, their outcomes, and the protocol of what answers them.

Guarantees: an error in handling one row's text or answer refuses that row and stops no run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from pipeline.base.paths import ROOT
from pipeline.base.redaction import redact
from pipeline.proof.reconstruct import Expected
from pipeline.records import Completion, Ids, Prompt, Reason, Refusal, RefusedError

T = TypeVar("T")


class Status(StrEnum):
    """How a request ended.

    `unknown`: sent, perhaps billed, and without an answer. `again`: turned away for now, free of charge. `refused`:
    turned away for good, free of charge; only a probe uses it, since a run has a refusal for such a row.
    """

    ANSWERED = "answered"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and its ids as rendered."""

    prompt: Prompt
    prompt_ids: Ids


@dataclass(frozen=True, slots=True)
class Outcome:
    """How asking one row ended.

    `answer` is a completion or a refusal where it was answered; `request` is its identity in the ledger. `pico` is the
    cost in pico-dollars, or the worst case where the cost is not known and `cost` is None. `worst_pico` is the most
    that it could cost at the listed price.
    """

    row: Row
    status: Status
    answer: Completion | Refusal | None = None
    request: str | None = None
    sent: bool = True
    pico: int = 0
    cost: int | None = None
    worst_pico: int = 0


def refusing_errors(make: Callable[[], T]) -> T | Refusal:
    """Return the result of `make`, or a refusal.

    An unforeseen error would otherwise stop every resumed run at the same row.
    """
    try:
        return make()
    except RefusedError as error:
        return error.refusal
    except MemoryError:
        raise
    except RecursionError:
        return Refusal(Reason.MALFORMED_INPUT, "RecursionError: nested too deeply for this program", field="response")
    except Exception as error:  # noqa: BLE001 - as said above; the raw answer lies in the ledger, for a program that can
        return internal_error(error)


def internal_error(error: Exception) -> Refusal:
    """Return the refusal of a row that broke this program.

    It names the last line of ours, so that the bug can be reported.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(ROOT / "pipeline")), None)
    where = f" at {Path(ours.filename).name}:{ours.lineno}" if ours else ""
    return Refusal(Reason.INTERNAL_ERROR, f"{type(error).__name__}{where}: {redact(str(error), 200)}", field="response")


class Backend(Protocol):
    """Protocol of what answers the rows of a run.

    Implemented by `HostedBackend` (an API behind HTTP), `ServerBackend` (an engine's server) and `LocalBackend` (a
    model in this process). `batch` rows are passed to each call of `complete`, and `workers` calls run at a time.
    `expected` is held against each answer.
    """

    batch: int
    workers: int
    expected: Expected

    def refusal(self, row: Row) -> Refusal | None:
        """Return why a row cannot be asked, if so.

        It is called before anything is sent.
        """
        ...

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """Return one outcome a row, in order. Raises StopError."""
        ...

    def close(self) -> None:
        """Start nothing new; what is in flight still comes in."""
        ...


TROUBLE, UNUSABLE, BUDGET_SPENT, TRIPPED, INTERRUPTED = 1, 2, 4, 5, 130
"""Exit codes of a run that stopped."""


class StopError(Exception):
    """The run cannot go on.

    The message is for the user, `code` is the exit code.
    """

    def __init__(self, message: str, code: int = TROUBLE) -> None:
        super().__init__(message)
        self.code = code
