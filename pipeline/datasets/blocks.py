"""Records of a file in blocks that a worker can be handed: lines of JSON, a batch of Arrow, or rows read already.

Guarantees: each record comes out as one Raw or one Rejected, which says where it stands; memory is that of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipeline.datasets.rows import Raw, Reject, Rejected
from pipeline.jsonlines import object_of
from pipeline.records import RefusedError


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of JSON; `first` is the number of the first."""

    file: str
    first: int
    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records of a Parquet file as an Arrow stream."""

    file: str
    first: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """What was read in this process: items of an array, a hub's rows, joined conversations."""

    data: tuple[Raw | Rejected, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """What was put aside and only has to be read again, which `read` does in whatever process the block is in."""

    data: tuple[Any, ...]
    read: Callable[[tuple[Any, ...]], Iterator[Raw | Rejected]]


Block: TypeAlias = Lines | Batch | Rows | Put


def rows_of(block: Block) -> Iterator[Raw | Rejected]:
    """Every record of the block, in order. Blank lines are none."""
    if isinstance(block, Rows):
        yield from block.data
    elif isinstance(block, Put):
        yield from block.read(block.data)
    elif isinstance(block, Lines):
        for number, line in enumerate(block.data, block.first):
            if line and not line.isspace():
                yield row_of(line, block.file, number)
    else:
        from pyarrow import ipc

        for number, value in enumerate(ipc.open_stream(block.data).read_all().to_pylist(), block.first):
            yield Raw(value, block.file, number)


def row_of(text: bytes, file: str, line: int) -> Raw | Rejected:
    """One record that is JSON."""
    try:
        return Raw(object_of(text), file, line)
    except RefusedError as error:
        return Rejected(None, Reject.NOT_JSON, error.refusal.detail, file, line)
    except RecursionError:
        return Rejected(None, Reject.NOT_JSON, "the JSON is nested too deeply to read", file, line)


def count_of(block: Block) -> int:
    """How many records a block of a source holds, told apart from reading them."""
    if isinstance(block, Rows):
        return len(block.data)
    if isinstance(block, Lines):
        return sum(1 for line in block.data if line and not line.isspace())
    if isinstance(block, Put):
        raise TypeError("records are counted as a source gives them, before any are put aside")
    from pyarrow import ipc

    return sum(batch.num_rows for batch in ipc.open_stream(block.data))
