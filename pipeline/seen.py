"""A set of keys on disk: which ids were met, in constant memory over any number of them.

Guarantees: a key is found again exactly (by its 128-bit hash); nothing of it outlives the process.
"""

from __future__ import annotations

import hashlib
import sqlite3


class Seen:
    """Keys met so far. SQLite's temporary database spills to disk, so a million keys cost its page cache only."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
        self.count = 0

    def add(self, key: str) -> bool:
        """Remember `key`; False if it was there already."""
        new = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (_digest(key),)).rowcount == 1
        self.count += new
        return new

    def __contains__(self, key: str) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE key = ?", (_digest(key),)).fetchone() is not None

    def close(self) -> None:
        """Drop the set and its file."""
        self._db.close()


def _digest(key: str) -> bytes:
    # A lone surrogate may stand in an id that is about to be refused; it still needs a key.
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
