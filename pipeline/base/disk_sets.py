"""Sets and counters of keys that spill to disk.

Guarantees: memory is constant over any number of keys. A key is found again exactly, by its 128-bit hash. Nothing
outlives the process.
"""

from __future__ import annotations

import hashlib
import sqlite3

CACHE_KIB = 16 * 1024


class DiskSet:
    """A set of keys; memory is the page cache's alone."""

    def __init__(self) -> None:
        self._db = temporary("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
        self.count = 0

    def add(self, key: str) -> bool:
        """Add `key`; False if it was there already."""
        new = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (_digest(key),)).rowcount == 1
        self.count += new
        return new

    def __contains__(self, key: str) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE key = ?", (_digest(key),)).fetchone() is not None

    def close(self) -> None:
        """Drop the set and its file."""
        self._db.close()


class DiskCounter:
    """A count for each key."""

    def __init__(self) -> None:
        self._db = temporary("CREATE TABLE met (key BLOB PRIMARY KEY, times INTEGER) WITHOUT ROWID")

    def add(self, key: str) -> int:
        """Count `key` once more and return its count."""
        upsert = "INSERT INTO met VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET times = times + 1 RETURNING times"
        return int(self._db.execute(upsert, (_digest(key),)).fetchone()[0])

    def close(self) -> None:
        """Drop the counts and their file."""
        self._db.close()


def temporary(*tables: str) -> sqlite3.Connection:
    """Open a temporary database that spills to disk.

    It is gone when closed. All is one transaction, since a commit for each key would cost more than the keys.
    """
    db = sqlite3.connect("", isolation_level=None)
    for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
        db.execute(f"PRAGMA {setting}")
    for table in tables:
        db.execute(table)
    db.execute("BEGIN")
    return db


def _digest(key: str) -> bytes:
    # A lone surrogate may stand in an id that is about to be refused; it still needs a key.
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
