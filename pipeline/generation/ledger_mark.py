"""A count, in a folder, of its ledger's writes.

Guarantees: the mark is on disk before a request is sent and before an answer is used. So a ledger that lacks a
reservation or an answer of the run is known, whatever ended the last session: another one, an older copy, or one whose
write-ahead log is gone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pipeline.generation.ledger import Ledger
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.outcome import UNUSABLE, StopError

MARK: Final = "ledger.mark"
_DIGITS: Final = 20


class LedgerMark:
    """The number of a run's reservations and answers."""

    def __init__(self, folder: Path, run: str, ledger: Ledger) -> None:
        """Require a ledger that has all that the mark counts.

        Call outside a transaction. Raises StopError.
        """
        self._path = folder / MARK
        with ledger.transaction():
            found = ledger.writes(run)
        known = self._known()
        if found < known:
            raise StopError(
                f"{folder} counts {known} reservations and answers, and {ledger.path} has {found} of them: it is not"
                " the ledger that this run wrote, or an older copy. Put that one back with its -wal file, or name"
                " its folder with DRAFTER_GATE_STATE=DIR, or give another --out DIR",
                UNUSABLE,
            )
        self._before, self._kept = found - ledger.written, known
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.follow(ledger)

    def follow(self, ledger: Ledger) -> None:
        """Count what the ledger has committed since.

        On disk when it returns. Raises LedgerError.
        """
        if (now := self._before + ledger.written) <= self._kept:
            return
        try:
            os.pwrite(self._file, f"{now:0{_DIGITS}d}\n".encode(), 0)  # one sector: whole or not at all
            os.fsync(self._file)
        except OSError as error:
            raise LedgerError(f"{self._path}: {error.strerror}. Mend that and run the same command again") from error
        self._kept = now

    def close(self) -> None:
        os.close(self._file)

    def _known(self) -> int:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        if not text:  # a kill between making it and the first count: nothing was sent
            return 0
        if len(text) != _DIGITS + 1 or not text[:_DIGITS].isdigit():
            raise StopError(f"{self._path} is no count ({text[:40]!r}). Give another --out DIR", UNUSABLE)
        return int(text)
