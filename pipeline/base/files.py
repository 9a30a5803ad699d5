"""Files written whole or not at all, and lock files.

Guarantees: after a crash a reader finds the old file or the new one, never a part of either. A lock is released when
its file is closed or its process ends, even by a kill, so no stale lock is left behind. The lock's file stays: if it
were removed, a third process could lock another file of that name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TextIO


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file, then rename it.

    File and folder are synced. Raises OSError; then the temporary file is removed.
    """
    part = aside(path)
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def aside(path: Path) -> Path:
    """Return the temporary file's path; a kill may leave it."""
    return path.with_name(f".{path.name}.tmp")


def append_synced(path: Path, data: bytes) -> None:
    """Append and sync. Raises OSError; then the length is unchanged."""
    # Unbuffered: a buffer that a full disk refused would be written once more when the file is closed.
    with path.open("ab", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), length)
            raise


def sync_folder(folder: Path) -> None:
    """Make renames and new files survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def weights_sha256(folder: Path) -> str:
    """Return one digest over a model's weight files, by name."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class HeldError(Exception):
    """Another process holds the lock; `holder` is its id."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by process {holder}")
        self.holder = holder


def lock_file(path: Path) -> TextIO:
    """Lock `path` until the returned file is closed.

    Raises HeldError, OSError.
    """
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
    # A full disk must not fail here, where the id is a courtesy: the next write will report it.
    with suppress(OSError):
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
    return lock
