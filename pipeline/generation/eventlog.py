"""The event log of a run: one JSON object a line, beside the shards, for programs that watch.

Guarantees: lines are only added, each whole before the next and each with its time (UTC); nothing of a prompt, an
answer's text or a key stands in it. Nothing is read back from it: the ledger and the manifest are what a run goes by.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pipeline.records import Json

EVENTS = "events.jsonl"


class EventLog:
    """Open for appending until `close`. Raises OSError where the disk takes no more."""

    def __init__(self, folder: Path) -> None:
        self._file: TextIO = (folder / EVENTS).open("a", encoding="utf-8", newline="\n", buffering=1)

    def write(self, event: str, **fields: Json) -> None:
        """One line: `at`, `event`, and its fields."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"at": at, "event": event, **fields}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
