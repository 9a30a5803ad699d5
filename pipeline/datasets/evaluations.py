"""Evaluation prompts as they lie in a folder, whatever their files call them.

Guarantees: only what an evaluation asks is read, never its reference answers; a file in which nothing is asked is
named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.datasets.blocks import rows_of
from pipeline.datasets.keys import text_of
from pipeline.datasets.rows import Raw
from pipeline.datasets.sources import KINDS, Schema, SourceError, blocks_of
from pipeline.records import Json, JsonObject

ASKED = (
    *("turns", "question", "questions", "prompt", "prompts", "problem", "instruction", "input", "query"),
    *("messages", "conversations", "responses_create_params"),
)
"""The columns under which evaluation sets keep what they ask."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One text that an evaluation asks, and where."""

    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Where it stands, in short: the last two parts of the path and the record's number."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


def asked_in(folder: Path) -> tuple[list[Asked], list[str]]:
    """All that is asked below a folder (or in a file), and the files in which nothing is. Raises SourceError."""
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.suffix in KINDS)
    found: list[Asked] = []
    silent: list[str] = []
    for path in paths:
        asked = list(_asked_in_file(path))
        found += asked
        silent += [] if asked else [str(path)]
    if not found:
        what = "no file in it asks anything" if folder.exists() else "there is no such folder"
        raise SourceError(f"{folder}: {what} ({', '.join(ASKED[:6])}, messages …). Give a folder of evaluation prompts")
    return found, silent


def _asked_in_file(path: Path) -> Iterator[Asked]:
    for block in blocks_of(path, Schema(str(path), [frozenset()], frozenset(ASKED))):
        for row in rows_of(block):
            if isinstance(row, Raw):
                texts = (text for column in ASKED if column in row.value for text in _texts(row.value[column]))
                yield from (Asked(text, row.file, row.line) for text in texts if text.strip())


def _texts(value: Json) -> Iterator[str]:
    """Texts as they stand, and what users say in lists of messages, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _said(value) if "role" in value or "from" in value else _texts(value.get("input"))


def _said(message: JsonObject) -> Iterator[str]:
    if message.get("role", message.get("from")) not in ("user", "human"):
        return
    told, parts = message.get("value"), message.get("content")
    yield told if isinstance(told, str) else text_of(message)
    if isinstance(parts, list):
        yield from (str(part["value"]) for part in parts if isinstance(part, dict) and "value" in part)
