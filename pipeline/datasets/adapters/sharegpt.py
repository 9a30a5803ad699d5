"""B7, ShareGPT: conversations that people shared, cut into chunks by the publisher and joined again here.

Guarantees: a continuation is never a prompt of its own. Chunks of one conversation are joined where they meet: the id's
number is the offset of the first message, and a message that both chunks hold says the same in both.

ShareGPT's chunks joined again, over any number of rows: they wait in SQLite, which spills to disk.

Guarantees: each row that goes in comes out once, as part of a conversation (and then it is said of which), as itself,
or as rejected; memory does not grow with the rows. Conversations are read again and joined where their block is.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import orjson

from pipeline.base.disk_sets import temporary
from pipeline.base.json_lines import line_of
from pipeline.datasets.blocks import Block, RowsBlock, SpilledBlock, rows_of
from pipeline.datasets.conversation import asked_last, identity, sound
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError, objects_in, role_in, text_in
from pipeline.records import JsonObject, Prompt

NAME = "B7"
COLUMNS, MORE = frozenset({"conversations"}), frozenset({"id", "plugins"})
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}
FOOTER = re.compile(r"conversation is shared from\b.*(?:chathub\.gg|typingmind\.com)", re.IGNORECASE | re.DOTALL)
PAGES = re.compile(r"\A\s*\d+ / \d+[ \t]*\n+(?=.)", re.DOTALL)
CHUNK = re.compile(r"(.+)_(\d+)", re.DOTALL)
DIGITS = 20
"""Of a longer offset, which no conversation has, the beginning is enough: Python reads no number of any length."""
PAGE = """anon8231489123/ShareGPT_Vicuna_unfiltered (`ShareGPT_V3_unfiltered_cleaned_split.json`, about 94,800 rows) and
Aeala/ShareGPT_Vicuna_unfiltered (`ShareGPT_V4.3_unfiltered_cleaned_split.json`). The cards say Apache-2.0; the text is
what users and ChatGPT wrote, and the rights in it are unclear.

Schema: `id`, `conversations` (`from` is `human`, `user`, `gpt`, `chatgpt`, `bing`, `bard` or `system`, `value`). A
number as id is its digits, an id that is missing a hash of the row, other keys are passed over.

Chunks: an id is `PREFIX_N`, N the offset of the first message, and 46 % of the published rows continue another.
Chunks of one prefix are joined, whether they repeat a message or none; a row that was joined is counted as `joined`.
A row without turns is rejected before that, since its id is mostly that of a whole row. Where a chunk is missing, or
says another thing than the one before, the conversation ends there, and what has no beginning is rejected as
`no_beginning`.

The prompt is the conversation up to its last user turn, with the answers recorded in between as history. Dropped: share
sites' footers (every `system` turn of the published rows is one), a page number (`1 / 2`) at the start of a user turn,
the second of two equal user turns, everything from the first empty turn on, the last answer, and rows with `plugins`.
Kept as it stands: HTML and `Copy code` left in the text, since a cleaner that guesses is worse than what was typed."""


def adapt(raw: Raw) -> Prompt:
    """A whole conversation. Raises RejectedError."""
    if raw.value.get("plugins"):
        raise RejectedError(Reject.PLUGINS, "the row has plugins")
    chunk = chunk_of(raw.value)
    if chunk is not None and chunk[1] > 0:
        raise RejectedError(Reject.NO_BEGINNING, f"the row begins with message {chunk[1]} of its conversation")
    turns = [turn for turn in map(_turn, objects_in(raw.value, "conversations")) if turn is not None]
    row_id = identity(NAME, raw.value.get("id"), raw.value["conversations"])
    return Prompt(row_id, asked_last(sound(turns)), dataset=NAME)


def chunk_of(row: JsonObject) -> tuple[str, int] | None:
    """The conversation that a row belongs to and the offset of its first message; None where its id tells neither."""
    own = row.get("id")
    found = CHUNK.fullmatch(own) if isinstance(own, str) else None
    return (found.group(1), int(found.group(2)[:DIGITS])) if found else None


def join(chunks: Sequence[Raw]) -> Iterator[tuple[Raw, str | None]]:
    """Chunks of one conversation, by offset from 0 on: the whole one first, then what became of each other chunk.

    That is None where its turns stand in the whole, else why they do not.
    """
    first, turns = chunks[0], list(objects_in(chunks[0].value, "conversations"))
    fates: list[tuple[Raw, str | None]] = []
    for chunk in chunks[1:]:
        more, at = objects_in(chunk.value, "conversations"), _offset(chunk)
        apart = _why_apart(turns[at:], more, at - len(turns))
        fates.append((chunk, apart or None))
        if not apart:
            turns.extend(more[len(turns) - at :])
    yield Raw({**first.value, "conversations": list(map(dict, turns))}, first.file, first.line), None
    yield from fates


def _why_apart(shared: Sequence[JsonObject], more: Sequence[JsonObject], gap: int) -> str:
    """Why a chunk does not continue the turns so far, of which it should repeat `shared`; "" where it does."""
    if gap > 0:
        return f"{gap} messages before it are not in the source"
    if [_said(turn) for turn in shared[: len(more)]] != [_said(turn) for turn in more[: len(shared)]]:
        return "it says another thing than the chunk before it, where both hold the same message"
    return ""


def _said(turn: JsonObject) -> tuple[object, object]:
    return turn.get("from"), turn.get("value")


def _offset(chunk: Raw) -> int:
    found = chunk_of(chunk.value)
    return found[1] if found else 0


def _turn(turn: JsonObject) -> JsonObject | None:
    role, text = role_in(turn, "from", ROLES), text_in(turn, "value")
    if role == "system" and FOOTER.search(text):
        return None
    return {"role": role, "content": PAGES.sub("", text) if role == "user" else text}


CHUNK_COLUMNS = "first INTEGER, offset INTEGER, seq INTEGER, file TEXT, line INTEGER, row BLOB"
TABLES = (
    "CREATE TABLE firsts (prefix BLOB PRIMARY KEY, first INTEGER) WITHOUT ROWID",
    f"CREATE TABLE chunks ({CHUNK_COLUMNS}, PRIMARY KEY (first, offset, seq)) WITHOUT ROWID",
)
LARGEST = 2**62
CONVERSATIONS = 64
"""Conversations a block: they are long."""


def joined_chunks(blocks: Iterable[Block]) -> Iterator[Block]:
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
                yield RowsBlock(tuple(passed))
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
        yield SpilledBlock(some, _read)


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
