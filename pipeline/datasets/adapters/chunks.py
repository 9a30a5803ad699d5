"""ShareGPT's chunks joined again, over any number of rows: they wait in SQLite, which spills to disk.

Guarantees: each row that goes in comes out once, as part of a conversation (and then it is said of which), as itself,
or as rejected; memory does not grow with the rows. Conversations are read again and joined where their block is.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import orjson

from pipeline.base.disk_sets import temporary
from pipeline.base.json_lines import line_of
from pipeline.datasets.adapters.sharegpt import NAME, chunk_of, join
from pipeline.datasets.blocks import Block, Put, Rows, rows_of
from pipeline.datasets.columns import objects_in
from pipeline.datasets.conversation import identity
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError
from pipeline.records import JsonObject

COLUMNS = "first INTEGER, offset INTEGER, seq INTEGER, file TEXT, line INTEGER, row BLOB"
TABLES = (
    "CREATE TABLE firsts (prefix BLOB PRIMARY KEY, first INTEGER) WITHOUT ROWID",
    f"CREATE TABLE chunks ({COLUMNS}, PRIMARY KEY (first, offset, seq)) WITHOUT ROWID",
)
LARGEST = 2**62
CONVERSATIONS = 64
"""Conversations a block: they are long."""


def joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Rows that are no chunks at once, and then each conversation, in the order of its first row."""
    with closing(temporary(*TABLES)) as db:
        seq = 0
        for block in blocks:
            passed: list[Raw | Rejected] = []
            for row in rows_of(block):
                seq += 1
                kept = row if isinstance(row, Rejected) else _kept(db, seq, row)
                passed += [] if kept is None else [kept]
            if passed:
                yield Rows(tuple(passed))
        yield from _conversations(db)


def _kept(db: sqlite3.Connection, seq: int, raw: Raw) -> Raw | Rejected | None:
    """Put a chunk aside; what is none comes back."""
    chunk = chunk_of(raw.value)
    if chunk is None or raw.value.get("plugins") or chunk[1] > LARGEST:
        return raw
    try:
        turns = objects_in(raw.value, "conversations")
    except RejectedError as error:
        return error.of(raw)
    if not turns:
        return RejectedError(Reject.NO_TURNS, "conversations is empty").of(raw)
    prefix, offset = chunk[0].encode("utf-8", "surrogatepass"), chunk[1]
    new = db.execute("INSERT OR IGNORE INTO firsts VALUES (?, ?)", (prefix, seq)).rowcount
    first = seq if new else db.execute("SELECT first FROM firsts WHERE prefix = ?", (prefix,)).fetchone()[0]
    row = line_of(raw.value)
    db.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)", (first, offset, seq, raw.file, raw.line, row))
    return None


def _conversations(db: sqlite3.Connection) -> Iterator[Block]:
    found = db.execute("SELECT first, offset, file, line, row FROM chunks ORDER BY first, offset, seq")
    groups = (tuple(group) for _, group in groupby(found, key=itemgetter(0)))
    while some := tuple(islice(groups, CONVERSATIONS)):
        yield Put(some, _read)


def _read(groups: Iterable[Sequence[tuple[int, int, str, int, bytes]]]) -> Iterator[Raw | Rejected]:
    for group in groups:
        rows = [Raw(_object(row), file, line) for _, _, file, line, row in group]
        if len(rows) == 1 or group[0][1] > 0:
            yield from rows
        else:
            yield from _joined(rows)


def _object(row: bytes) -> JsonObject:
    """A row that was written here, so that no key of it stands twice."""
    try:
        value: dict[str, Any] = orjson.loads(row)
    except orjson.JSONDecodeError:  # half a surrogate pair, which was written as an escape
        value = json.loads(row)
    return value


def _joined(rows: Sequence[Raw]) -> Iterator[Raw | Rejected]:
    (whole, _), *others = join(rows)
    yield whole
    for raw, apart in others:
        row_id = identity(NAME, raw.value["id"])
        if apart is None:
            part_of = f"part of {identity(NAME, whole.value['id'])}"
            yield Rejected(row_id, Reject.JOINED, part_of, raw.file, raw.line)
        else:
            yield Rejected(row_id, Reject.NO_BEGINNING, apart, raw.file, raw.line, raw.value)
