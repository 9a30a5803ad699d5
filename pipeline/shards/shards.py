"""Parquet shards of proven rows; the quarantine of others.

Guarantees: a shard is whole or not there. A row stands in exactly one of shards and quarantine, and once. What a crash
cut off is written again from the ledger. Rows that wait in memory are bounded by ids as well as by rows: an id takes
four bytes in a packed block, and forty as a Python number. A trial shard is written before anything is asked for, so a
library that cannot write one is found then, and the memory for it is taken then.

Columns of a shard: id, prompt_ids and output_ids (int32 lists), spans (kind, start, stop), evidence (of the output),
detail, dataset, route, prompt_evidence. Shards written before the last column are read with what is sure of them: a
model of ours was sent ids, any other prompt counts as `counted`.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.base.disk_sets import DiskSet
from pipeline.base.files import append_synced, write_whole
from pipeline.records import OWN_APIS, Evidence, Ids, Json, Refusal, Span, SpanKind, TokenRow

QUARANTINE = "quarantine.jsonl"
ROWS_A_SHARD = 4096
ROWS_A_BLOCK, IDS_A_BLOCK = 256, 1 << 18
IDS_A_SHARD = 1 << 22
"""Sixteen MiB: thousands of short answers, or some of the longest."""
CODEC = "zstd"
# A dictionary of ids saves 2 % on disk, and costs ten times the memory of the rows while it is made.
DICTIONARIES = ["evidence", "detail", "dataset", "route", "prompt_evidence"]
SPAN = pa.struct([("kind", pa.string()), ("start", pa.int32()), ("stop", pa.int32())])
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
        ("spans", pa.list_(SPAN)),
        ("evidence", pa.string()),
        ("detail", pa.string()),
        ("dataset", pa.string()),
        ("route", pa.string()),
        ("prompt_evidence", pa.string()),
    ]
)
OLD_SCHEMA = pa.schema(list(SCHEMA)[:-1])
"""The columns of shards that were written before prompts had evidence of their own."""
TRIAL = TokenRow("trial", tuple(range(24)), tuple(range(1000)), (Span(SpanKind.CONTENT, 0, 1000),), Evidence.COUNTED)
TRIED = (
    ROWS_A_BLOCK,
    24 * ROWS_A_BLOCK,
    1000 * ROWS_A_BLOCK,
    {"counted": ROWS_A_BLOCK},
    {"counted": ROWS_A_BLOCK},
    ROWS_A_BLOCK,
)
"""One block of the trial row: rows, prompt and output tokens, rows by evidence and by the prompt's, cut rows."""
COUNTED_COLUMNS = ("prompt_ids", "output_ids", "spans", "evidence", "route", "prompt_evidence")
REINSTALL = "pip install --force-reinstall -c constraints.txt pyarrow"


class ShardError(Exception):
    """The folder holds foreign files, or takes no more rows."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of the folder, and what it holds.

    A manifest from before prompts had evidence names neither the last two.
    """

    file: str
    sha256: str
    rows: int
    prompt_tokens: int
    output_tokens: int
    evidence: Mapping[str, int]
    prompt_evidence: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The quarantine as this program wrote it.

    `sha256` is None where there is none; `bytes` is None in a manifest of an older version, which did not say.
    """

    file: str = QUARANTINE
    sha256: str | None = None
    bytes: int | None = None


NO_QUARANTINE = Quarantine(bytes=0)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A refused row: why, where it came from, its request.

    `where` has its `file` and `line`. `request` is its request's identity in the ledger, from which it can be replayed;
    `token_ids` stand in for it where no request was sent.
    """

    id: str | None
    refusal: Refusal
    where: Mapping[str, Json] = field(default_factory=dict)
    request: str | None = None
    dataset: str = ""
    token_ids: Ids | None = None

    @property
    def key(self) -> str:
        """Return the row's key: its line, else its id."""
        return f"line {self.where['line']}" if "line" in self.where else f"id {self.id}"

    def document(self) -> dict[str, Json]:
        """Return the quarantine line."""
        refusal = self.refusal
        found = {"field": refusal.field, "char_offset": refusal.char_offset, "token_position": refusal.token_position}
        where = {**self.where, **{key: value for key, value in found.items() if value is not None}}
        line: dict[str, Json] = {"id": self.id, "reason": str(refusal.reason), "detail": refusal.detail}
        line |= {"where": where, "dataset": self.dataset, "request": self.request}
        return line if self.token_ids is None else line | {"token_ids": list(self.token_ids)}


class ShardFolder:
    """The rows of one run, written shard by shard.

    Rows wait in memory until `flush`, or until a shard is full.

        rows = ShardFolder(out, route="emulator/chutes", metadata={"run": run})
        rows.accept(row, "B1")
        rows.flush()
    """

    def __init__(
        self, folder: Path, *, route: str, metadata: Mapping[str, str], rows_a_shard: int = ROWS_A_SHARD
    ) -> None:
        """Open or make the folder and count its rows.

        Raises ShardError, OSError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.shards: list[Shard] = []
        self.reasons: Counter[str] = Counter()
        self._schema = SCHEMA.with_metadata(dict(metadata))
        self._rows_a_shard = rows_a_shard
        self._waiting = ShardBuffer(route, self._schema)
        self._evidence: Counter[str] = Counter()
        self.prompt_evidence: Counter[str] = Counter()
        """Accepted rows by the evidence of their prompts."""
        self.cut = 0
        """Accepted rows without an end token."""
        self._tokens = [0, 0]
        self._refused: list[Quarantined] = []
        self._quarantine, self._length = hashlib.sha256(), 0
        self._done = DiskSet()
        _try_out(self._schema)
        self._read_back()

    def __contains__(self, key: str) -> bool:
        """Whether a row has this key (`id X`, `line N`)."""
        return key in self._done

    def __len__(self) -> int:
        """Count the rows, accepted or refused."""
        return self._done.count

    def accept(self, row: TokenRow, dataset: str) -> None:
        """Take a proven row.

        Raises ShardError where the row is there already, OSError.
        """
        if not self._done.add(f"id {row.id}"):
            raise ShardError(f"row {row.id!r} is in {self.folder} already")
        self._waiting.add(row, dataset)
        self._evidence[str(row.evidence)] += 1
        self.prompt_evidence[str(row.prompt_evidence)] += 1
        self.cut += row.is_cut
        self._tokens = [self._tokens[0] + len(row.prompt_ids), self._tokens[1] + len(row.output_ids)]
        if len(self._waiting) >= self._rows_a_shard or self._waiting.heavy:
            self.flush()

    def refuse(self, refused: Quarantined) -> None:
        """Take a refused row.

        Raises ShardError where the row is there already, OSError.
        """
        if not self._done.add(refused.key):
            raise ShardError(f"row {refused.key} is in {self.folder} already")
        self._refused.append(refused)
        self.reasons[refused.refusal.reason] += 1
        if len(self._refused) >= self._rows_a_shard:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait. Raises OSError.

        Then they still wait, and a later flush may write them.
        """
        if self._refused:
            lines = "".join(json.dumps(refused.document()) + "\n" for refused in self._refused)
            append_synced(self.folder / QUARANTINE, lines.encode("ascii"))
            self._add_quarantine(lines.encode("ascii"))
            self._refused.clear()
        if self._waiting:
            path = self.folder / f"shard-{len(self.shards):05d}.parquet"
            write_whole(path, self._waiting.write)
            self.shards.append(_described(path))
            self._waiting.drop()

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine as written, whatever the disk has since."""
        return Quarantine(QUARANTINE, self._quarantine.hexdigest(), self._length) if self._length else NO_QUARANTINE

    def _add_quarantine(self, data: bytes) -> None:
        self._quarantine.update(data)
        self._length += len(data)

    def evidence(self) -> Counter[str]:
        """Count accepted rows by evidence, written or waiting."""
        return self._evidence.copy()

    def tokens(self) -> tuple[int, int]:
        """Count prompt and output tokens of all accepted rows."""
        return self._tokens[0], self._tokens[1]

    def _read_back(self) -> None:
        """Count what earlier sessions wrote. Raises ShardError."""
        for path in sorted(self.folder.glob("shard-*.parquet")):
            shard = _described(path)
            if shard.file != f"shard-{len(self.shards):05d}.parquet":
                raise ShardError(f"{path}: shard-{len(self.shards):05d}.parquet is missing before it. Put it back")
            if (other := (pq.read_schema(path).metadata or {}).get(b"run")) != (
                mine := (self._schema.metadata or {}).get(b"run")
            ):
                raise ShardError(f"{path} is of run {other!r}, this folder of {mine!r}. Move it away")
            for row_id in chain.from_iterable(block.column("id").to_pylist() for block in _blocks(path, "id")):
                if not self._done.add(f"id {row_id}"):
                    raise ShardError(f"{path}: row {row_id!r} stands in an earlier shard too")
            self.shards.append(shard)
            self._evidence.update(shard.evidence)
            self.prompt_evidence.update(shard.prompt_evidence)
            self.cut += shard.cut
            self._tokens = [self._tokens[0] + shard.prompt_tokens, self._tokens[1] + shard.output_tokens]
        for raw, line in _quarantine(self.folder / QUARANTINE):
            self._add_quarantine(raw)
            where = line.get("where")
            self._done.add(
                f"line {where['line']}" if isinstance(where, dict) and "line" in where else f"id {line['id']}"
            )
            self.reasons[str(line["reason"])] += 1


class ShardBuffer:
    """The rows of the next shard, packed in blocks."""

    def __init__(self, route: str, schema: pa.Schema) -> None:
        self._route = route
        self._schema = schema
        self._rows: list[tuple[TokenRow, str]] = []
        self._ids = 0
        self._blocks: list[pa.RecordBatch] = []
        self._packed_rows = self._packed_ids = 0

    def __len__(self) -> int:
        """Count the rows that wait."""
        return len(self._rows) + self._packed_rows

    @property
    def heavy(self) -> bool:
        """Whether the rows have enough ids for a shard."""
        return self._ids + self._packed_ids >= IDS_A_SHARD

    def add(self, row: TokenRow, dataset: str) -> None:
        """Add a row."""
        self._rows.append((row, dataset))
        self._ids += len(row.prompt_ids) + len(row.output_ids)
        if len(self._rows) >= ROWS_A_BLOCK or self._ids >= IDS_A_BLOCK:
            self._pack()

    def write(self, file: BinaryIO) -> None:
        """Write all rows as one Parquet file. Raises OSError.

        They stay until they are dropped.
        """
        self._pack()
        with pq.ParquetWriter(file, self._schema, compression=CODEC, use_dictionary=DICTIONARIES) as writer:
            for block in self._blocks:
                writer.write_batch(block)

    def drop(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._blocks.clear()
        self._ids = self._packed_rows = self._packed_ids = 0

    def _pack(self) -> None:
        """Turn the rows since the last block into a block."""
        if not (rows := self._rows):
            return
        columns: list[list[object]] = [  # in the order of the schema
            [row.id for row, _ in rows],
            [row.prompt_ids for row, _ in rows],
            [row.output_ids for row, _ in rows],
            [[{"kind": str(s.kind), "start": s.start, "stop": s.stop} for s in row.spans] for row, _ in rows],
            [str(row.evidence) for row, _ in rows],
            [row.detail for row, _ in rows],
            [dataset for _, dataset in rows],
            [self._route] * len(rows),
            [str(row.prompt_evidence) for row, _ in rows],
        ]
        arrays = [pa.array(values, type=kind.type) for values, kind in zip(columns, self._schema, strict=True)]
        self._blocks.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._packed_rows, self._packed_ids = len(self), self._packed_ids + self._ids
        self._rows.clear()
        self._ids = 0


def _try_out(schema: pa.Schema) -> None:
    """Write a trial shard to memory. Raises ShardError."""
    buffer, file = ShardBuffer("trial", schema), io.BytesIO()
    for _ in range(ROWS_A_BLOCK):
        buffer.add(TRIAL, "trial")
    try:
        buffer.write(file)
        found = _counts(file)
    except (pa.ArrowException, OSError) as error:
        raise ShardError(f"this pyarrow writes no shards ({error}). Run: {REINSTALL}") from error
    if found != TRIED:
        raise ShardError(f"this pyarrow reads of a shard what was not written ({found}). Run: {REINSTALL}")


def _described(path: Path) -> Shard:
    """Read what a shard holds. Raises ShardError."""
    data = path.read_bytes()  # once, so that what is counted is what the digest is of
    try:
        return Shard(path.name, hashlib.sha256(data).hexdigest(), *_counts(io.BytesIO(data)))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ShardError(f"{path} is no shard of this program ({error}). Move it away") from error


def with_prompt_evidence(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """Return the rows with the column that old shards lack.

    The prompt of a model of ours went as ids and came back as ids; of other old prompts no more than a count is sure.
    """
    if "prompt_evidence" in rows.schema.names:
        return rows
    routes = rows.column("route").to_pylist()
    grades = [str(Evidence.ENGINE_IDS if route in OWN_APIS else Evidence.COUNTED) for route in routes]
    return rows.append_column("prompt_evidence", pa.array(grades, pa.string()))


def cut_rows(rows: pa.RecordBatch | pa.Table) -> list[bool]:
    """Return of each row whether it has no end token."""
    return [all(span["kind"] != SpanKind.END for span in spans) for spans in rows.column("spans").to_pylist()]


def _counts(file: Path | BinaryIO) -> tuple[int, int, int, dict[str, int], dict[str, int], int]:
    """Count as in `Shard`: rows, tokens, evidence, cut rows.

    Raises ArrowException, KeyError, OSError.
    """
    rows, tokens, evidence, prompts, cut = 0, [0, 0], Counter[str](), Counter[str](), 0
    for block in map(with_prompt_evidence, _blocks(file, *COUNTED_COLUMNS)):
        rows += block.num_rows
        for at, name in enumerate(("prompt_ids", "output_ids")):
            tokens[at] += int(pc.sum(pc.list_value_length(block.column(name))).as_py() or 0)
        evidence.update(block.column("evidence").to_pylist())
        prompts.update(block.column("prompt_evidence").to_pylist())
        cut += sum(cut_rows(block))
    return rows, tokens[0], tokens[1], dict(evidence), dict(prompts), cut


def _blocks(file: Path | BinaryIO, *columns: str) -> Iterator[pa.RecordBatch]:
    """Yield these columns, a block of rows at a time.

    By this thread alone, since other threads keep memory of their own.
    """
    with pq.ParquetFile(file) as opened:
        # A column that the file lacks is left out, as of old shards.
        yield from opened.iter_batches(ROWS_A_BLOCK, columns=list(columns), use_threads=False)


def _quarantine(path: Path) -> Iterator[tuple[bytes, dict[str, Json]]]:
    """Yield the whole lines, with their bytes. Raises ShardError.

    A last line that a crash cut off is removed, since its row comes again.
    """
    if not path.exists():
        return
    with path.open("r+b") as file:
        whole = 0
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                value = json.loads(line)
                if not isinstance(value, dict) or not {"id", "reason"} <= set(value):
                    raise ValueError("not a quarantine line")  # noqa: TRY301 - reported like a line that is no JSON
            except ValueError as error:
                raise ShardError(
                    f"{path}, line {number}: {error}. Move the file away, or give another --out"
                ) from error
            yield line, value
        file.truncate(whole)
