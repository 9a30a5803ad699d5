"""Proven rows that wait for their shard: packed block by block as they come, a row group each once they are written.

Guarantees: what waits is bounded by ids as well as by rows, however long the answers are. An id takes four bytes in a
block, and forty as a Python number.
"""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records import TokenRow

ROWS_A_BLOCK, IDS_A_BLOCK = 256, 1 << 18
IDS_A_SHARD = 1 << 22
"""Sixteen MiB: thousands of short answers, or some of the longest."""
CODEC = "zstd"
# A dictionary of ids saves 2 % on disk, and costs ten times the memory of the rows while it is made.
DICTIONARIES = ["evidence", "detail", "dataset", "route"]


class Waiting:
    """The rows of the next shard, in order."""

    def __init__(self, route: str, schema: pa.Schema) -> None:
        self._route = route
        self._schema = schema
        self._rows: list[tuple[TokenRow, str]] = []
        self._ids = 0
        self._blocks: list[pa.RecordBatch] = []
        self._packed_rows = self._packed_ids = 0

    def __len__(self) -> int:
        """How many rows wait."""
        return len(self._rows) + self._packed_rows

    @property
    def heavy(self) -> bool:
        """Whether they hold as many ids as a shard takes, few rows though they may be."""
        return self._ids + self._packed_ids >= IDS_A_SHARD

    def add(self, row: TokenRow, dataset: str) -> None:
        """One more row."""
        self._rows.append((row, dataset))
        self._ids += len(row.prompt_ids) + len(row.output_ids)
        if len(self._rows) >= ROWS_A_BLOCK or self._ids >= IDS_A_BLOCK:
            self._pack()

    def write(self, file: BinaryIO) -> None:
        """All of them as one Parquet file; they wait on until they are dropped. Raises OSError."""
        self._pack()
        with pq.ParquetWriter(file, self._schema, compression=CODEC, use_dictionary=DICTIONARIES) as writer:
            for block in self._blocks:
                writer.write_batch(block)

    def drop(self) -> None:
        """Wait for none of them any more."""
        self._rows.clear()
        self._blocks.clear()
        self._ids = self._packed_rows = self._packed_ids = 0

    def _pack(self) -> None:
        if not self._rows:
            return
        arrays = [pa.array(values, type=kind.type) for values, kind in zip(self._columns(), self._schema, strict=True)]
        self._blocks.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._packed_rows, self._packed_ids = len(self), self._packed_ids + self._ids
        self._rows.clear()
        self._ids = 0

    def _columns(self) -> list[list[object]]:
        """In the order of the schema."""
        rows = self._rows
        return [
            [row.id for row, _ in rows],
            [row.prompt_ids for row, _ in rows],
            [row.output_ids for row, _ in rows],
            [[{"kind": str(s.kind), "start": s.start, "stop": s.stop} for s in row.spans] for row, _ in rows],
            [str(row.evidence) for row, _ in rows],
            [row.detail for row, _ in rows],
            [dataset for _, dataset in rows],
            [self._route] * len(rows),
        ]
