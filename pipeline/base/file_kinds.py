"""Name files that hold no text in UTF-8.

Guarantees: a file is judged by its first bytes, never by its name, and what is said of it ends with the command that
makes it readable. Such a file is not read: its parts are no lines, and each would be refused as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

HEAD = 512
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF = "iconv -f {name} -t UTF-8 {file} > {file}.utf8"
_TO_PARQUET = (
    "python -c 'import sys, pyarrow as pa, pyarrow.parquet as pq; "
    "pq.write_table(pa.ipc.{opener}(sys.argv[1]).read_all(), sys.argv[2])' {file} {file}.parquet"
)
KINDS: Sequence[tuple[bytes, str, str]] = (
    (b"\x1f\x8b", "gzip", "gunzip -k {file}"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d {file}"),
    (b"\xfd7zXZ\x00", "xz", "xz -dk {file}"),
    (b"BZh", "bzip2", "bunzip2 -k {file}"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dk {file}"),
    (b"PK\x03\x04", "a zip archive", "unzip {file}"),
    (b"PK\x05\x06", "a zip archive", "unzip {file}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x {file}"),
    (b"Rar!\x1a\x07", "a rar archive", "unrar x {file}"),
    (b"PAR1", "Parquet", "python -m pipeline prepare {file} --dataset messages --out prompts.jsonl"),
    (b"ARROW1", "an Arrow file", _TO_PARQUET.replace("{opener}", "open_file")),
    (b"\xff\xff\xff\xff", "an Arrow stream", _TO_PARQUET.replace("{opener}", "open_stream")),
    (b"SQLite format 3\x00", "an SQLite database", "sqlite3 -json {file} 'SELECT * FROM rows' > {file}.json"),
    (b"version https://git-lfs", "a Git LFS pointer, without the data", "git lfs pull"),
    (b"\xff\xfe\x00\x00", "UTF-32", _UTF.replace("{name}", "UTF-32")),
    (b"\x00\x00\xfe\xff", "UTF-32", _UTF.replace("{name}", "UTF-32")),
    (b"\xff\xfe", "UTF-16", _UTF.replace("{name}", "UTF-16")),
    (b"\xfe\xff", "UTF-16", _UTF.replace("{name}", "UTF-16")),
)
"""How files begin, what they are then, and the command that makes them readable."""
PACKED = frozenset({".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz"})
_TAR = slice(257, 262)


class FileKindError(Exception):
    """A file holds something else than JSON lines in UTF-8."""


def other_kind(path: Path | str, head: bytes) -> str | None:
    """Return what a file is and mends it, or None.

    `head` is its beginning. None: it may be text in UTF-8.
    """
    for start, kind, command in KINDS:
        if head.startswith(start):
            return f"{path} is {kind}, which is not read here. Run: {command.format(file=path)}"
    if head[_TAR] == b"ustar":
        return f"{path} is a tar archive, which is not read here. Run: tar -xf {path}"
    if b"\x00" in head:
        return f"{path} holds NUL bytes, so it is no text in UTF-8. Give JSON lines in UTF-8"
    return None


def require_lines(path: Path, file: BinaryIO) -> None:
    """Refuse an open file that cannot be JSON lines.

    Its place is kept, behind a byte order mark. Raises FileKindError.
    """
    head = file.read(HEAD)
    if (what := other_kind(path, head)) is not None:
        raise FileKindError(what)
    start = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    if head[start:].lstrip().startswith(b"["):
        mend = f"Run: python -m pipeline prepare {path} --dataset messages --out prompts.jsonl"
        raise FileKindError(f"{path} is one JSON array, and prompts stand one on a line. {mend}")
    file.seek(start)
