"""Read rows from files, folders, globs and hub datasets.

Files are JSON, JSON lines or Parquet.

Guarantees: a file is streamed, never loaded whole, and read in order; the same source gives the same rows with the same
numbers. Raises SourceError, in one sentence, where a source is absent, cannot be read (is packed, in another encoding,
no JSON), holds no rows or has other columns than the dataset.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.base.file_kinds import BYTE_ORDER_MARK, HEAD, PACKED, other_kind
from pipeline.base.json_lines import LONGEST_LINE
from pipeline.datasets.blocks import ArrowBlock, Block, LinesBlock, RowsBlock, checked_row, row_of, rows_of
from pipeline.datasets.json_values import BrokenJsonError, values_in
from pipeline.datasets.rows import Raw, Reject, Rejected

KINDS = (".parquet", ".jsonl", ".ndjson", ".json")
HUB = re.compile(r"hub:(?P<repo>[^@:]+)@(?P<revision>[0-9a-f]{7,40})(?::(?P<config>[^:]+)(?::(?P<split>[^:]+))?)?")
BLOCK_BYTES = 192 * 1024
BLOCK_ROWS = 512
SAMPLED = 16
"""Records whose columns are checked before a file of JSON is read."""


class SourceError(Exception):
    """A source cannot be read as the named dataset."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns that a dataset reads.

    `wanted` holds sets of columns, one of which a file must have; `read` is all that is read.
    """

    name: str
    wanted: Sequence[AbstractSet[str]]
    read: AbstractSet[str]


def blocks_of(source: Path | str, schema: Schema) -> Iterator[Block]:
    """Yield all records of the source, in blocks.

    Raises SourceError, also where there are none.
    """
    text = str(source)
    blocks = _hub_blocks(text, schema) if text.startswith("hub:") else _file_blocks(text, schema)
    empty = True
    for block in blocks:
        empty = empty and not isinstance(block, ArrowBlock) and not any(True for _ in rows_of(block))
        yield block
    if empty:
        raise SourceError(f"{text} holds no rows. Give a file, a folder or a glob that does")


def files_of(source: str) -> list[Path]:
    """Return the files that a path or glob names, sorted.

    Of a folder's files, only those of the first kind in `KINDS` that it has, hidden ones left out. Raises SourceError.
    """
    path = Path(source)
    if path.is_dir():
        inner = sorted(one for one in path.rglob("*") if one.is_file())
        shown = [one for one in inner if not any(part.startswith(".") for part in one.relative_to(path).parts)]
        packed = (one for one in shown if one.suffix in PACKED and Path(one.stem).suffix in KINDS)
        if (left_out := next(packed, None)) is not None:
            raise SourceError(
                f"{left_out} is packed, so its rows would be left out. Unpack it, or name the files to read"
            )
        kinds = (tuple(one for one in shown if one.suffix == kind) for kind in KINDS)
        files = list(next(filter(None, kinds), ()))
    elif path.exists():
        files = [path]
    else:
        names = glob.glob(source, recursive=True)  # noqa: PTH207 — Path.glob takes no absolute pattern
        files = sorted(found for name in names if (found := Path(name)).is_file())
    if not files:
        what = f"no file in it ends in {', '.join(KINDS)}" if path.is_dir() else "there is no such file"
        raise SourceError(f"{source}: {what}. Give a file, a folder, a glob, or hub:REPO@REVISION")
    return files


def _file_blocks(source: str, schema: Schema) -> Iterator[Block]:
    for path in files_of(source):
        try:
            with path.open("rb") as file:
                head = file.read(HEAD)
                is_parquet = head.startswith(b"PAR1")
                if not is_parquet and (what := other_kind(path, head)) is not None:
                    raise SourceError(what)
                file.seek(0)
                yield from _parquet_blocks(path, file, schema) if is_parquet else _json_blocks(path, file, schema)
        except BrokenJsonError as error:
            message = f"{path}: {error}. Nothing behind that can be read: fetch or write the file again"
            raise SourceError(message) from None
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            if type(error).__module__.partition(".")[0] != "pyarrow":
                raise
            why = str(error).rstrip(".")
            raise SourceError(f"{path} is no whole Parquet file: {why}. Fetch or write it again") from None


def _json_blocks(path: Path, file: BinaryIO, schema: Schema) -> Iterator[Block]:
    is_lines = _is_lines(file)
    records = _nonblank_lines(file) if is_lines else map(_encoded, values_in(file))
    texts = list(islice(records, SAMPLED))
    sample = [row_of(text, str(path), 0) for text in texts]
    file.seek(0)
    if texts and texts[0].lstrip()[:1] not in (b"{", b"[") and not any(isinstance(row, Raw) for row in sample):
        start = texts[0].strip()[:40].decode("utf-8", "replace")
        raise SourceError(f"{path} is no JSON: it begins {start!r}. Write it as JSON lines or Parquet, CSV is not read")
    _check_columns(path, schema, [row.value.keys() for row in sample if isinstance(row, Raw)])
    if is_lines:
        yield from _line_blocks(str(path), file)
    else:
        numbered = enumerate(values_in(file), 1)
        while rows := tuple(islice((row_of(_encoded(text), str(path), at) for at, text in numbered), BLOCK_ROWS)):
            yield RowsBlock(rows)


def _is_lines(file: BinaryIO) -> bool:
    """Whether each line is a record.

    It is not where the file is an array, or one object over many lines.
    """
    start = file.read(65536).removeprefix(BYTE_ORDER_MARK).lstrip()
    file.seek(0)
    line, line_feed, _ = start.partition(b"\n")
    return not start.startswith(b"[") and not (line_feed and line.rstrip()[-1:] in (b"{", b"[", b","))


def _nonblank_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE):
        if line.strip():
            yield line.removeprefix(BYTE_ORDER_MARK)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _line_blocks(name: str, file: BinaryIO) -> Iterator[Block]:
    r"""Yield the lines of a file in blocks.

    Lines end at b"\n" alone. One that is too long for a record is skipped and rejected.
    """
    first, held, size, number = 1, list[bytes](), 0, 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if len(line) > LONGEST_LINE:
            yield LinesBlock(name, first, tuple(held))
            yield RowsBlock((Rejected(None, Reject.NOT_JSON, f"longer than {LONGEST_LINE} bytes", name, number),))
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            first, held, size = number + 1, [], 0
            continue
        held.append(line)
        size += len(line)
        if size >= BLOCK_BYTES:
            yield LinesBlock(name, first, tuple(held))
            first, held, size = number + 1, [], 0
    if held:
        yield LinesBlock(name, first, tuple(held))


def _parquet_blocks(path: Path, file: BinaryIO, schema: Schema) -> Iterator[Block]:
    from pyarrow import BufferOutputStream, ipc
    from pyarrow.parquet import ParquetFile

    table = ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    found = list(table.schema_arrow.names)
    _check_columns(path, schema, [set(found)])
    if twice := next((name for name in schema.read if found.count(name) > 1), None):
        raise SourceError(f"{path} has the column {twice} twice, and which of them is meant is not said. Drop one")
    columns = [name for name in found if name in schema.read]
    first = 1
    for batch in table.iter_batches(batch_size=BLOCK_ROWS, columns=columns):
        sink = BufferOutputStream()
        with ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield ArrowBlock(str(path), first, sink.getvalue().to_pybytes())
        first += batch.num_rows


def _check_columns(path: Path | str, schema: Schema, found: Sequence[AbstractSet[str]]) -> None:
    """Raise SourceError where no record has the dataset's columns.

    `found` holds the columns of the first records.
    """
    if not found or any(wanted <= columns for wanted in schema.wanted for columns in found):
        return
    wanted = ", or ".join(", ".join(sorted(columns)) for columns in schema.wanted)
    present = ", ".join(sorted(found[0])) or "none"
    raise SourceError(
        f"{path} has the columns {present}; {schema.name} wants {wanted}. Name its dataset with --dataset"
    )


def _hub_blocks(source: str, schema: Schema) -> Iterator[Block]:
    named = HUB.fullmatch(source)
    if named is None:
        raise SourceError(f"{source!r} names no pinned revision. Write hub:REPO@COMMIT, hub:REPO@COMMIT:CONFIG:SPLIT")
    rows = enumerate(_hub_rows(source, named), 1)
    block = list(islice(rows, SAMPLED))
    _check_columns(source, schema, [row.keys() for _, row in block])
    while block:
        yield RowsBlock(tuple(checked_row(Raw(row, source, number)) for number, row in block))
        block = list(islice(rows, BLOCK_ROWS))


def _hub_rows(source: str, named: re.Match[str]) -> Iterator[dict[str, Any]]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]  # nobody needs it who reads files
    except ImportError:
        raise SourceError("hub datasets need the package datasets. Run: pip install datasets") from None
    try:
        yield from load_dataset(
            named["repo"], named["config"], split=named["split"] or "train", revision=named["revision"], streaming=True
        )
    except Exception as error:  # noqa: BLE001 — the library raises its own, its client's and OSError alike
        raise SourceError(f"{source}: not read ({type(error).__name__}: {str(error)[:240]})") from None
