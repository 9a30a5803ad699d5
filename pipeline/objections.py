"""An objection: what stands in the way, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objection:
    """`what` is one sentence without its full stop; `mend` is a command to paste, empty where none helps."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}. Run: {self.mend}" if self.mend else f"{self.what}."


PROVE = "nox -s contract"
"""Mends everything that a fresh run of the contract suite mends."""
