"""B7, ShareGPT: conversations that people shared.

The publisher cut them into chunks, which are joined again here.

Guarantees: a continuation is never a prompt of its own. Chunks of one conversation are joined where they meet: the id's
number is the offset of the first message, and a message that both chunks hold says the same in both. Each row that goes
in comes out once: as itself, as rejected, or as part of a conversation, which is named.

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
from typing import Any

import orjson

from pipeline.base.disk_sets import temporary
from pipeline.base.json_lines import line_of
from pipeline.datasets.blocks import Block, RowsBlock, SpilledBlock, rows_of
from pipeline.datasets.conversation import identity, sound, to_last_question
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError, objects_in, turns_in
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
FOOTER = re.compile(
    r"\*This (?:chat )?conversation is shared from \[\*\*[^*\]\n]+\*\*\]\(https://(?:chathub\.gg|typingmind\.com)\)\*"
)
"""All of a system turn, as two share sites write it."""
CHUNK = re.compile(r"(.+)_(\d+)", re.DOTALL)
DIGITS = 20
"""Digits of an offset that are read: no conversation has more, and Python limits the length of numbers."""
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
sites' footers (every `system` turn of the published rows is one, as a whole), the second of two equal user turns,
everything from the first empty turn on, the last answer, and rows with `plugins`. Kept as it stands: HTML, `Copy code`
and what may be a page number (`1 / 2`, a fraction as well), since a guess is worse than what was typed."""


def adapt(raw: Raw) -> Prompt:
    """Return a whole conversation. Raises RejectedError."""
    if raw.value.get("plugins"):
        raise RejectedError(Reject.PLUGINS, "the row has plugins")
    chunk = chunk_of(raw.value)
    if chunk is not None and chunk[1] > 0:
        raise RejectedError(Reject.NO_BEGINNING, f"the row begins with message {chunk[1]} of its conversation")
    turns: list[JsonObject] = []
    for turn in turns_in(raw.value, "conversations", ROLES, role_key="from", text_key="value"):
        role, text = turn["role"], str(turn["content"])
        if role != "system" or not FOOTER.fullmatch(text):
            turns.append({"role": role, "content": text})
    row_id = identity(NAME, raw.value.get("id"), raw.value["conversations"])
    return Prompt(row_id, to_last_question(sound(turns)), dataset=NAME)


def chunk_of(row: JsonObject) -> tuple[str, int] | None:
    """Return a row's conversation, and its first message's offset.

    None where its id names neither.
    """
    own = row.get("id")
    found = CHUNK.fullmatch(own) if isinstance(own, str) else None
    return (found.group(1), int(found.group(2)[:DIGITS])) if found else None


def join(chunks: Sequence[Raw]) -> Iterator[tuple[Raw, str | None]]:
    """Join chunks of one conversation, sorted by offset.

    Yields the whole conversation first, then each other chunk, with None where its turns stand in the whole, else why
    they do not.
    """
    first, turns = chunks[0], list(objects_in(chunks[0].value, "conversations"))
    others: list[tuple[Raw, str | None]] = []
    for chunk in chunks[1:]:
        more, found = objects_in(chunk.value, "conversations"), chunk_of(chunk.value)
        offset = found[1] if found else 0
        shared, gap = turns[offset:], offset - len(turns)
        if gap > 0:
            others.append((chunk, f"{gap} messages before it are not in the source"))
        elif [_speech(turn) for turn in shared[: len(more)]] != [_speech(turn) for turn in more[: len(shared)]]:
            why = "it says another thing than the chunk before it, where both hold the same message"
            others.append((chunk, why))
        else:
            others.append((chunk, None))
            turns.extend(more[len(shared) :])
    yield Raw({**first.value, "conversations": list(map(dict, turns))}, first.file, first.line), None
    yield from others


def _speech(turn: JsonObject) -> tuple[object, object]:
    return turn.get("from"), turn.get("value")


# Chunks joined again

CHUNK_COLUMNS = "first INTEGER, offset INTEGER, seq INTEGER, file TEXT, line INTEGER, row BLOB"
TABLES = (
    "CREATE TABLE firsts (prefix BLOB PRIMARY KEY, first INTEGER) WITHOUT ROWID",
    f"CREATE TABLE chunks ({CHUNK_COLUMNS}, PRIMARY KEY (first, offset, seq)) WITHOUT ROWID",
)
LARGEST = 2**62
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
        found = db.execute("SELECT first, offset, file, line, row FROM chunks ORDER BY first, offset, seq")
        groups = (tuple(group) for _, group in groupby(found, key=itemgetter(0)))
        while some := tuple(islice(groups, CONVERSATIONS)):
            yield SpilledBlock(some, _read_joined)


def _put_aside(db: sqlite3.Connection, seq: int, raw: Raw) -> Raw | Rejected | None:
    """Store a chunk and return None; return any other row."""
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


def _read_joined(groups: Iterable[Sequence[tuple[int, int, str, int, bytes]]]) -> Iterator[Raw | Rejected]:
    for group in groups:
        rows = [Raw(_stored(row), file, line) for _, _, file, line, row in group]
        if len(rows) == 1 or group[0][1] > 0:
            yield from rows
            continue
        (whole, _), *others = join(rows)
        yield whole
        for raw, why_apart in others:
            row_id = identity(NAME, raw.value["id"])
            if why_apart is None:
                part_of = f"part of {identity(NAME, whole.value['id'])}"
                yield Rejected(row_id, Reject.JOINED, part_of, raw.file, raw.line)
            else:
                yield Rejected(row_id, Reject.NO_BEGINNING, why_apart, raw.file, raw.line, raw.value)


def _stored(row: bytes) -> JsonObject:
    """Read a row that was stored here."""
    try:
        value: dict[str, Any] = orjson.loads(row)
    except orjson.JSONDecodeError:  # half a surrogate pair, which was written as an escape
        value = json.loads(row)
    return value
