"""B7, ShareGPT: conversations that people shared.

The publisher cut them into chunks, which are joined again here.

Guarantees: a continuation is never a prompt of its own, and no history is made of conversations whose ids only count up
(`identity_0`, `identity_1`). Chunks are joined where the id's number is the offset of the first message and the
chunks say that they belong together: the later one begins with an answer or repeats a message, or the id has the form
of the publisher's and no chunk of it contradicts. Each row that goes in comes out once: as itself, as rejected, or as
part of a conversation, which is named.

Chunks wait in SQLite, which spills to disk, so memory does not grow with the rows. Conversations are read again and
joined in whatever process their block is.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, TypeAlias

import orjson

from pipeline.base.disk_sets import temporary
from pipeline.base.json_lines import line_of
from pipeline.datasets.blocks import Block, RowsBlock, SpilledBlock, rows_of
from pipeline.datasets.conversation import identity, sound
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError, objects_in, turns_in
from pipeline.records import Json, JsonObject, Prompt

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
FOOTER = re.compile(
    r"\*This (?:chat )?conversation is shared from \[\*\*[^*\]\n]+\*\*\]\(https://(?:chathub\.gg|typingmind\.com)\)\*"
)
"""All of a system turn, as two share sites write it."""
CHUNK = re.compile(r"(.+)_(\d+)", re.DOTALL)
SHARED = re.compile(r"[0-9A-Za-z]{7}")
"""The prefix of every published id."""
DIGITS = 18
"""Digits of an offset that are read: no conversation has more, and SQLite holds so many."""
MOST_PARTS = 1_000
"""Rows of one prefix that may be one conversation's. The longest published conversation has fewer than a hundred."""
PAGE = """anon8231489123/ShareGPT_Vicuna_unfiltered (`ShareGPT_V3_unfiltered_cleaned_split.json`, about 94,800 rows) and
Aeala/ShareGPT_Vicuna_unfiltered (`ShareGPT_V4.3_unfiltered_cleaned_split.json`). The cards say Apache-2.0; the text is
what users and ChatGPT wrote, and the rights in it are unclear.

Schema: `id`, `conversations` (`from` is `human`, `user`, `gpt`, `chatgpt`, `bing`, `bard` or `system`, `value`). A
number as id is its digits, an id that is missing a hash of the row, other keys are passed over.

Chunks: an id is `PREFIX_N`, N the offset of the first message, and 46 % of the published rows continue another.
A chunk is joined where the messages before it are all there, and it begins with an answer, or repeats messages of the
chunk before it, or has an id of the published form (seven letters and digits) that no chunk contradicts; a row that
was joined is counted as `joined`. A row without turns is rejected before that, since its id is mostly that of a whole
row. Where a chunk is missing, or says another thing than the one before, the conversation ends there, and what has no
beginning is rejected as `no_beginning`. Rows of another id (`identity_0`, `identity_1`) that begin with a question are
conversations of their own, unless that with `_0` is missing.

The prompt is the conversation up to its last user turn, with the answers recorded in between as history. Dropped: share
sites' footers (every `system` turn of the published rows is one, as a whole), the second of two equal user turns,
everything from the first empty turn on, the last answer, and rows with `plugins`. Kept as it stands: HTML, `Copy code`
and what may be a page number (`1 / 2`, a fraction as well), since a guess is worse than what was typed."""


def adapt(raw: Raw) -> Prompt:
    """Return a whole conversation, answers included. Raises RejectedError."""
    if raw.value.get("plugins"):
        raise RejectedError(Reject.PLUGINS, "the row has plugins")
    turns: list[JsonObject] = []
    for turn in turns_in(raw.value, "conversations", ROLES, role_key="from", text_key="value"):
        role, text = turn["role"], str(turn["content"])
        if role != "system" or not FOOTER.fullmatch(text):
            turns.append({"role": role, "content": text})
    row_id = identity(NAME, raw.value.get("id"), raw.value["conversations"])
    return Prompt(row_id, sound(turns), dataset=NAME)


def chunk_of(row: JsonObject) -> tuple[str, int] | None:
    """Return a row's conversation, and its first message's offset.

    None where its id names neither.
    """
    own = row.get("id")
    found = CHUNK.fullmatch(own) if isinstance(own, str) else None
    return (found.group(1), int(found.group(2)[:DIGITS])) if found else None


def joined(rows: Sequence[Raw]) -> Iterator[Raw | Rejected]:
    """Yield the rows of one prefix, sorted by offset, joined.

    The whole conversation comes first, then every other row: as joined, as rejected, or as its own.
    """
    prefix, offset = _known(rows[0])
    agree, published = _agree(rows), SHARED.fullmatch(prefix) is not None
    may_count = not published or (prefix.isalpha() and prefix.islower())
    if offset > 0:
        for row in rows:
            yield row if may_count and not agree else _no_beginning(row, "the first part is not in the source")
        return
    turns, parts, others = list(objects_in(rows[0].value, "conversations")), [rows[0]], list[Raw | Rejected]()
    for row in rows[1:]:
        more = objects_in(row.value, "conversations")
        why = _apart(turns, more, _known(row)[1], agree=agree, published=published)
        if why is None:
            turns.extend(more[max(len(turns) - _known(row)[1], 0) :])
            parts.append(row)
            part_of = f"part of {identity(NAME, rows[0].value['id'])}"
            others.append(Rejected(identity(NAME, row.value["id"]), Reject.JOINED, part_of, row.file, row.line))
        else:
            others.append(row if may_count and not _begins_with_answer(more) else _no_beginning(row, why))
    whole: dict[str, Json] = {**rows[0].value, "conversations": list(map(dict, turns))}
    yield Raw(whole, rows[0].file, rows[0].line, tuple(parts) if len(parts) > 1 else ())
    yield from others


def _apart(
    turns: Sequence[JsonObject], more: Sequence[JsonObject], offset: int, *, agree: bool, published: bool
) -> str | None:
    """Return why a chunk cannot be joined, or None.

    `agree`: all rows of the prefix agree; `published`: it has the form of the publisher's.
    """
    if offset > len(turns):
        return f"{offset - len(turns)} messages before it are not in the source"
    if offset == len(turns):
        is_part = agree and (published or _begins_with_answer(more))
        return None if is_part else "nothing says that it continues the row before it"
    shared = turns[offset : offset + len(more)]
    if [_speech(turn) for turn in shared] == [_speech(turn) for turn in more[: len(shared)]]:
        return None
    return "it says another thing than the chunk before it, where both hold the same message"


def _agree(rows: Sequence[Raw]) -> bool:
    """Whether no two rows say different things at one offset."""
    said: dict[int, tuple[object, object]] = {}
    return all(
        said.setdefault(at, _speech(turn)) == _speech(turn)
        for row in rows
        for at, turn in enumerate(objects_in(row.value, "conversations"), _known(row)[1])
    )


def _known(row: Raw) -> tuple[str, int]:
    return chunk_of(row.value) or ("", 0)


def _begins_with_answer(turns: Sequence[JsonObject]) -> bool:
    roles = (ROLES.get(str(turn.get("from"))) for turn in turns)
    return next((role for role in roles if role != "system"), None) == "assistant"


def _no_beginning(row: Raw, why: str) -> Rejected:
    return Rejected(identity(NAME, row.value["id"]), Reject.NO_BEGINNING, why, row.file, row.line, row.value)


def _speech(turn: JsonObject) -> tuple[object, object]:
    return turn.get("from"), turn.get("value")


# Chunks joined again

_Stored: TypeAlias = tuple[int, str, int, bytes]
"""A chunk as it waits: its conversation's first row, its place, and its JSON."""

CHUNK_COLUMNS = "first INTEGER, offset INTEGER, seq INTEGER, file TEXT, line INTEGER, row BLOB"
TABLES = (
    "CREATE TABLE firsts (prefix BLOB PRIMARY KEY, first INTEGER) WITHOUT ROWID",
    f"CREATE TABLE chunks ({CHUNK_COLUMNS}, PRIMARY KEY (first, offset, seq)) WITHOUT ROWID",
)
CONVERSATIONS = 64
"""Conversations in one block: they are long."""


def joined_chunks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield rows that are no chunks, then each joined conversation.

    Conversations are in the order of their first rows.
    """
    with closing(temporary(*TABLES)) as db:
        seq = 0
        for block in blocks:
            passed: list[Raw | Rejected] = []
            for row in rows_of(block):
                seq += 1
                outcome = row if isinstance(row, Rejected) else _put_aside(db, seq, row)
                passed += [] if outcome is None else [outcome]
            if passed:
                yield RowsBlock(tuple(passed))
        found = db.execute("SELECT first, file, line, row FROM chunks ORDER BY first, offset, seq")
        yield from _conversations(found)


def _conversations(found: Iterable[_Stored]) -> Iterator[Block]:
    """Yield blocks of prefixes, each with all of its rows.

    Rows of a prefix that has more than one conversation can are read one by one, so that memory does not grow.
    """
    held: list[tuple[_Stored, ...]] = []
    for _, group in groupby(found, key=itemgetter(0)):
        rows = tuple(islice(group, MOST_PARTS + 1))
        if len(rows) <= MOST_PARTS:
            held.append(rows)
        if held and (len(rows) > MOST_PARTS or len(held) == CONVERSATIONS):
            yield SpilledBlock(tuple(held), _read_joined)
            held = []
        if len(rows) > MOST_PARTS:
            while some := rows[:CONVERSATIONS]:
                yield SpilledBlock(some, _read_apart)
                rows = (*rows[CONVERSATIONS:], *islice(group, CONVERSATIONS))  # noqa: B031 — goes on where the first look stopped
    if held:
        yield SpilledBlock(tuple(held), _read_joined)


def _put_aside(db: sqlite3.Connection, seq: int, raw: Raw) -> Raw | Rejected | None:
    """Store a chunk and return None; return any other row."""
    chunk = chunk_of(raw.value)
    if chunk is None or raw.value.get("plugins"):
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


def _read_joined(groups: Iterable[Sequence[_Stored]]) -> Iterator[Raw | Rejected]:
    for group in groups:
        yield from joined([Raw(_stored(row), file, line) for _, file, line, row in group])


def _read_apart(rows: Iterable[_Stored]) -> Iterator[Raw | Rejected]:
    for _, file, line, row in rows:
        yield Raw(_stored(row), file, line)


def _stored(row: bytes) -> JsonObject:
    """Read a row that was stored here."""
    try:
        value: dict[str, Any] = orjson.loads(row)
    except orjson.JSONDecodeError:  # half a surrogate pair, which was written as an escape
        value = json.loads(row)
    return value
