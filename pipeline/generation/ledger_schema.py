"""The ledger's file: tables, lock and error messages.

Guarantees: a commit is on disk when it returns (WAL with full synchronisation). No sqlite3 error leaves this module
unexplained.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.base.files import HeldError, lock_file

SCHEMA_VERSION = 3
# A ledger has an id of its own, by which a run knows it again.
_ID = "CREATE TABLE ledger (id TEXT NOT NULL); INSERT INTO ledger VALUES (lower(hex(randomblob(16))))"
SINCE: Mapping[int, str] = {1: "ALTER TABLE requests ADD COLUMN worst_tokens INTEGER NOT NULL DEFAULT 0", 2: _ID}
"""The statement that brings a file of an older version one version further."""

# Bodies and answers lie apart from the rows that change state, so that settling does not rewrite them.
SCHEMA = f"""
{_ID};
CREATE TABLE requests (
    identity TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
    run TEXT NOT NULL, api TEXT NOT NULL, route TEXT NOT NULL, model TEXT NOT NULL, dataset TEXT NOT NULL,
    row TEXT NOT NULL, day TEXT NOT NULL, reserved_at TEXT NOT NULL, answered_at TEXT, settled_at TEXT,
    worst_pico INTEGER NOT NULL, cost_pico INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER, note TEXT,
    worst_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (identity, attempt)
);
CREATE TABLE bodies (identity TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE answers (
    identity TEXT NOT NULL, attempt INTEGER NOT NULL,
    status INTEGER NOT NULL, generation_id TEXT, headers TEXT NOT NULL, raw BLOB NOT NULL,
    PRIMARY KEY (identity, attempt)
);
CREATE INDEX spend ON requests (api, day, route, dataset, state, worst_pico, cost_pico);
CREATE INDEX runs ON requests (run, state, worst_pico, cost_pico);
CREATE INDEX reserved ON requests (state) WHERE state = 'reserved';
"""


# Pages of 4 KB. SQLite's default of 1,000 left a killed run's answers in the -wal file alone, and that was removed.
_CHECKPOINT = "wal_autocheckpoint=100"


class LedgerError(Exception):
    """The ledger cannot be used, or refuses a change.

    The message says why, and what the user may do.
    """


def opened(path: Path) -> sqlite3.Connection:
    """Open a connection that writes.

    Makes the tables of a new file, and brings an older schema up to date.
    """
    db = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "fullfsync=ON", "checkpoint_fullfsync=ON", _CHECKPOINT):
        db.execute(f"PRAGMA {pragma}")
    found = _version(db, path)
    steps = SCHEMA if found == 0 else "".join(f"{SINCE[version]};" for version in range(found, SCHEMA_VERSION))
    if found < SCHEMA_VERSION:
        db.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open a connection that only reads, beside any run.

    None where there is no ledger yet. Raises LedgerError.
    """
    if not path.exists():
        yield None
        return
    with plain_errors(path):
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10)
        try:
            yield db if _version(db, path) else None
        finally:
            db.close()


def locked(path: Path) -> TextIO:
    """Take the lock of the one run that writes.

    It falls when closed or at exit. Raises LedgerError.
    """
    try:
        return lock_file(path.with_name(path.name + ".lock"))
    except HeldError as error:
        raise LedgerError(
            f"{path} is in use by another run (process {error.holder}). Wait for it to end, then run the same again"
        ) from error
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror or error}. Mend that and run the same command again") from error


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into LedgerErrors for the user."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(_explained(path, error)) from error


def _version(db: sqlite3.Connection, path: Path) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in {0, *SINCE, SCHEMA_VERSION}:
        raise LedgerError(f"{path} has schema {version}, this program knows {SCHEMA_VERSION}: update the program")
    return version


def _explained(path: Path, error: sqlite3.Error) -> str:
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        return f"{path}: the disk is full or refuses writes ({error}). Free some space and run the same command again"
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return f"{path} is locked by another program ({error}). Close it and run the same command again"
    if primary in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return f"{path} is no readable ledger ({error}). Put a good copy back, or move it away and with it paid answers"
    return f"{path}: {error}. The ledger was left as it was"
