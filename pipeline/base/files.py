"""Files that are whole or not there: written aside, synced, renamed, and the folder synced.

Guarantees: after a crash a reader finds the old file or the new one, never a part of either.

A lock file: one process at a time, whatever ends it.

Guarantees: the lock falls when the file is closed or the process is gone, a kill included, so none is ever left behind.
The file itself stays: removing it would let a third process lock another file of that name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO


def aside(path: Path) -> Path:
    """Where a file is written before it takes its place; a kill may leave this."""
    return path.with_name(f".{path.name}.tmp")


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file beside `path`, then put it in its place. Raises OSError, leaving nothing behind."""
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


def append_synced(path: Path, data: bytes) -> None:
    """Append and sync. Raises OSError; then the file is as long as it was."""
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
    """Make renames and new files in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def weights_sha256(folder: Path) -> str:
    """One digest over a model directory's weights, file by file in order of their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


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
