"""Hold a source's records in blocks for worker processes.

Guarantees: each record comes out as one Raw or one Rejected, which says where it stands; memory is that of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.base.json_lines import MOST_NESTED, object_of, require_shallow
from pipeline.datasets.rows import Raw, Reject, Rejected
from pipeline.records import RefusedError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LinesBlock:
    """Lines of JSON, numbered from `first`."""

    file: str
    first: int
    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """Records of a Parquet file as an Arrow stream."""

    file: str
    first: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """Rows that were read already, as a hub's."""

    data: tuple[Raw | Rejected, ...]


@dataclass(frozen=True, slots=True)
class SpilledBlock:
    """Data that `read` reads again, in any process."""

    data: tuple[Any, ...]
    read: Callable[[tuple[Any, ...]], Iterator[Raw | Rejected]]


Block: TypeAlias = LinesBlock | ArrowBlock | RowsBlock | SpilledBlock


def rows_of(block: Block) -> Iterator[Raw | Rejected]:
    """Yield every record of the block but blank lines."""
    if isinstance(block, RowsBlock):
        yield from block.data
    elif isinstance(block, SpilledBlock):
        yield from block.read(block.data)
    elif isinstance(block, LinesBlock):
        for number, line in enumerate(block.data, block.first):
            if line and not line.isspace():
                yield row_of(line, block.file, number)
    else:
        yield from _arrow_rows(block)


def _arrow_rows(block: ArrowBlock) -> Iterator[Raw | Rejected]:
    from pyarrow import ipc

    table = ipc.open_stream(block.data).read_all()
    plain = all(map(_is_plain, table.schema.types))
    try:
        values = table.to_pylist()
    except (
        ValueError,
        OverflowError,
    ):  # text that is no UTF-8, a time of no calendar: read each row alone to see which
        for line, at in enumerate(range(table.num_rows), block.first):
            try:
                yield checked_row(Raw(table.slice(at, 1).to_pylist()[0], block.file, line))
            except (ValueError, OverflowError) as error:
                detail = f"the record holds what no JSON can: {error}"
                yield Rejected(None, Reject.NOT_JSON, detail, block.file, line)
        return
    for number, value in enumerate(values, block.first):
        row = Raw(value, block.file, number)
        yield row if plain else checked_row(row)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether each value of an Arrow type is JSON."""
    from pyarrow import types

    if kind.num_fields:
        return not types.is_map(kind) and all(_is_plain(kind.field(at).type) for at in range(kind.num_fields))
    known = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_null)
    return any(is_known(kind) for is_known in known)


def checked_row(row: Raw) -> Raw | Rejected:
    """Return the row, rejected where a value is not JSON."""
    for column, value in row.value.items():
        if (stray := _not_json(value)) is not None:
            detail = f"{column} holds {stray}, for which JSON has no form"
            return Rejected(None, Reject.WRONG_SHAPE, detail, row.file, row.line)
    return row


def _not_json(value: object) -> str | None:
    """Return a value's first part that is not JSON."""
    holders = [value]
    for one in holders:  # grows while it is read
        if isinstance(one, dict):
            holders += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            holders += one
        elif not (one is None or isinstance(one, str | int) or (isinstance(one, float) and isfinite(one))):
            return f"{one!r} ({type(one).__name__})"[:80]
    return None


def row_of(text: bytes, file: str, line: int) -> Raw | Rejected:
    """Read one record of JSON."""
    try:
        value = object_of(text)
        if text.count(b"{") + text.count(b"[") > MOST_NESTED:
            require_shallow(value)
        return Raw(value, file, line)
    except RefusedError as error:
        return Rejected(None, Reject.NOT_JSON, error.refusal.detail, file, line)
    except RecursionError:
        return Rejected(None, Reject.NOT_JSON, "the JSON is nested too deeply to read", file, line)


def count_of(block: Block) -> int:
    """Count the records of a source's block without reading them."""
    if isinstance(block, RowsBlock):
        return len(block.data)
    if isinstance(block, LinesBlock):
        return sum(1 for line in block.data if line and not line.isspace())
    if isinstance(block, SpilledBlock):
        raise TypeError("records are counted as a source gives them, before any are put aside")
    from pyarrow import ipc

    return sum(batch.num_rows for batch in ipc.open_stream(block.data))
