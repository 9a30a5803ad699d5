"""A lock file: one process at a time, whatever ends it.

Guarantees: the lock falls when the file is closed or the process is gone, a kill included, so none is ever left behind.
The file itself stays: removing it would let a third process lock another file of that name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TextIO


class HeldError(Exception):
    """Another process holds the lock; `holder` is its id as it wrote it down, or `unknown`."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by process {holder}")
        self.holder = holder


def lock_file(path: Path) -> TextIO:
    """Hold `path` until the file that is returned is closed. Raises HeldError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise HeldError(holder) from error
    except OSError:
        lock.close()
        raise
    _sign(lock)
    return lock


def _sign(lock: TextIO) -> None:
    try:
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
    except OSError:
        # A full disk must not hide behind the lock's courtesy note; what is written next will report it.
        return
