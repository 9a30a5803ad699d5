"""B7, ShareGPT: conversations that people shared, cut into chunks by the publisher and joined again here.

Guarantees: a continuation is never a prompt of its own. Chunks of one conversation are joined where they meet: the id's
number is the offset of the first message, and a message that both chunks hold says the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.datasets.columns import objects_in, role_in, text_in
from pipeline.datasets.conversation import asked_last, identity, sound
from pipeline.datasets.rows import Raw, Reject, RejectedError
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
