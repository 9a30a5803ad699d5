"""What a developer spent today, for all checkouts.

One small file beside the developer's key. Guarantees: the sessions of a UTC day, in whatever checkout and with whatever
ledger, never hold more together than the day's cap. What a session may still spend is booked before it is reserved. A
session that was killed keeps what it had booked until the day ends.

The file holds amounts alone. Which requests were paid for is known to each ledger, so another checkout, or a ledger
that was removed, would ask and pay for the same request again, within the cap.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pipeline.base.money import PICO_PER_USD, usd_text
from pipeline.base.signing import key_dir
from pipeline.generation.ledger_schema import LedgerError

SPEND: Final = "spend.sqlite"
CENT: Final = PICO_PER_USD // 100
_TABLE = "CREATE TABLE IF NOT EXISTS spend (session TEXT, day TEXT, pico INTEGER NOT NULL, PRIMARY KEY (session, day))"
_OTHERS = "SELECT COALESCE(SUM(pico), 0) FROM spend WHERE day = ? AND session != ?"


class DaySpend:
    """One session's part of the day's spend.

    Real money alone. Its calls belong under one lock.
    """

    def __init__(self, cap: int | None = None, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Open the file, made where it is missing.

        `cap` is in pico-dollars. Raises LedgerError.
        """
        self._cap, self._clock, self._session = cap, clock, uuid.uuid4().hex
        self._day, self._before, self._booked = _day(clock), 0, 0
        self._path = key_dir() / SPEND
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"{self._path}: {error.strerror}. {_MEND}") from error
        with _plain_errors(self._path):
            self._db = sqlite3.connect(self._path, isolation_level=None, timeout=10, check_same_thread=False)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(_TABLE)

    def hold(self, pico: int, reserved: int) -> str | None:
        """Book what this session has spent and reserved.

        `pico` is both; what is reserved when a day begins counts on that day too. Returns None where it fits, else
        what all sessions would hold, in words, and books nothing. A commit to disk is made once a cent and not once a
        request. Raises LedgerError.
        """
        if (today := _day(self._clock)) != self._day:
            self._day, self._before, self._booked = today, pico - reserved, 0
        wanted = pico - self._before
        if wanted <= self._booked:
            return None
        with _plain_errors(self._path), self._transaction():
            others = int(self._db.execute(_OTHERS, (self._day, self._session)).fetchone()[0])
            if self._cap is not None and others + wanted > self._cap:
                return f"${usd_text(others + wanted)} of ${usd_text(self._cap)} a UTC day in all checkouts: {_LATER}"
            rounded = -(-wanted // CENT) * CENT
            self._book(rounded if self._cap is None else min(rounded, self._cap - others))
        return None

    def close(self, pico: int) -> None:
        """Give back what was booked above `pico`.

        Where the file refuses, all of it stays booked.
        """
        with closing(self._db), suppress(sqlite3.Error), self._transaction():
            self._book(min(max(pico - self._before, 0), self._booked))

    def _book(self, pico: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO spend VALUES (?, ?, ?)", (self._session, self._day, pico))
        self._booked = pico

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def booked_today(clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> int:
    """Return what all sessions booked this UTC day.

    In pico-dollars. Raises LedgerError.
    """
    if not (path := key_dir() / SPEND).exists():
        return 0
    with _plain_errors(path), closing(sqlite3.connect(path, timeout=10)) as db:
        db.execute(_TABLE)
        return int(db.execute(_OTHERS, (_day(clock), "")).fetchone()[0])


_LATER = "go on after midnight UTC"
_MEND = "Mend that, or name another folder for your keys: export DRAFTER_GATE_KEYS=DIR"


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{path}, what was spent today, cannot be used ({error}). {_MEND}") from error


def _day(clock: Callable[[], datetime]) -> str:
    return clock().astimezone(UTC).date().isoformat()
