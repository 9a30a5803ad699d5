"""Rows through a dataset's adapter, one or a file of them, and what came out in a form that is easy to compare.

Guarantees: nothing but the adapter is between the row and the outcome; of a file, every record is told of once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.datasets.registry import DATASETS, gathered, outcomes_of
from pipeline.datasets.rows import Raw, Reject, Rejected
from pipeline.datasets.sources import blocks_of
from pipeline.records import Json, Prompt

FILE, LINE = "rows.jsonl", 7
"""Where a row of our own is said to stand."""


def outcome(dataset: str, row: Mapping[str, Any]) -> Prompt | Rejected:
    """What the adapter makes of the row."""
    return DATASETS[dataset].adapt(Raw(row, FILE, LINE))


def prompt(dataset: str, row: Mapping[str, Any]) -> Prompt:
    """The prompt that the row becomes; ValueError where it becomes none."""
    made = outcome(dataset, row)
    if isinstance(made, Rejected):
        raise ValueError(f"{made.reason}: {made.detail}")  # noqa: TRY004 — not of another type, but no prompt
    return made


def reason(dataset: str, row: Mapping[str, Any]) -> Reject:
    """Why the row is rejected, where it stands; ValueError where it is not."""
    made = outcome(dataset, row)
    if isinstance(made, Prompt) or (made.file, made.line) != (FILE, LINE):
        raise ValueError(f"not rejected, or not where it stands: {made}")
    return made.reason


def by_length(dataset: str, rows: Iterable[Mapping[str, Any]]) -> dict[int, Prompt]:
    """One prompt of each length that the rows give."""
    return {len(made.messages): made for made in (prompt(dataset, row) for row in rows)}


def said(made: Prompt) -> list[tuple[Json, Json]]:
    """Role and content of each message."""
    return [(message["role"], message["content"]) for message in made.messages]


def adapted(dataset: str, path: Path) -> dict[int, Prompt | str]:
    """What becomes of each record of a file, by its number: a prompt or a reason."""
    known = DATASETS[dataset]
    found: dict[int, Prompt | str] = {}
    for block in gathered(known, blocks_of(path, known.schema)):
        for raw, one in outcomes_of(known, block):
            line = one.line if isinstance(one, Rejected) else raw.line if raw is not None else 0
            if line in found:
                raise ValueError(f"record {line} is told of twice")
            found[line] = str(one.reason) if isinstance(one, Rejected) else one
    return found
