"""Files that are whole or not there: written aside, synced, renamed, and the folder synced.

Guarantees: after a crash a reader finds the old file or the new one, never a part of either.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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
