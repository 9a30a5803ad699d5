"""Rows as training input of SpecForge and speculators.

One line a row: `{"input_ids", "loss_mask", "sha256"}`. Guarantees: ids and mask as they lie in the row and never text,
so that neither program renders or tokenizes anything; the hash covers both, so that what their loaders yield can be
compared with what was written. Both loaders silently cut rows above their maximum and drop rows without an emitted
token: the latter are refused here, and the longest row is reported. The summary lies beside the file, under a name that
no loader of `*.json` takes for rows.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.files import write_whole
from pipeline.base.json_lines import line_of
from pipeline.drafter.rows import TrainingRow
from pipeline.records import JsonObject

ROWS = "rows.jsonl"
ACCOUNT = "rows.manifest"


class TrainingInputError(Exception):
    """A row that loaders drop, or a folder in use."""


@dataclass(slots=True)
class Account:
    """Counts of what was written."""

    rows: int = 0
    tokens: int = 0
    supervised: int = 0
    longest: int = 0

    def add(self, length: int, supervised: int) -> None:
        self.rows += 1
        self.tokens += length
        self.supervised += supervised
        self.longest = max(self.longest, length)


def hash_of(ids: Sequence[int], mask: Sequence[int] | Sequence[bool]) -> str:
    """Return the sha256 of ids and mask.

    Ids as little-endian 32-bit numbers, then the mask, a byte of 0 or 1 each.
    """
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids) + bytes(int(one) for one in mask)).hexdigest()


def write_inputs(out: Path, rows: Iterable[TrainingRow], source: JsonObject) -> Account:
    """Write `rows.jsonl` and its account into a new folder.

    `source` is copied into the account. A failure leaves no file, so that the same folder can be given again. Raises
    TrainingInputError, OSError.
    """
    if out.exists() and any(out.iterdir()):
        raise TrainingInputError(f"{out} is not empty. Give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    account = Account()
    try:
        write_whole(out / ROWS, lambda file: file.writelines(_lines(rows, account)))
        document = {
            "rows": account.rows,
            "tokens": account.tokens,
            "supervised_tokens": account.supervised,
            "longest_row": account.longest,
            "sha256": hashlib.sha256((out / ROWS).read_bytes()).hexdigest(),
            "source": dict(source),
        }
        lines = [(json.dumps(document, indent=2) + "\n").encode("ascii")]
        write_whole(out / ACCOUNT, lambda file: file.writelines(lines))
    except BaseException:
        (out / ROWS).unlink(missing_ok=True)
        raise
    return account


def _lines(rows: Iterable[TrainingRow], account: Account) -> Iterator[bytes]:
    """Yield the rows as lines and count them. Raises TrainingInputError."""
    for row in rows:
        ids, mask = row.ids.tolist(), row.mask.int().tolist()
        if len(ids) != len(mask) or not any(mask):
            what = f"{len(ids)} ids, {len(mask)} marks, {sum(mask)} of them emitted"
            raise TrainingInputError(f"row {row.id!r} has {what}: loaders drop such a row without a word. Leave it out")
        account.add(len(ids), sum(mask))
        yield line_of({"input_ids": ids, "loss_mask": mask, "sha256": hash_of(ids, mask)})
    if not account.rows:
        raise TrainingInputError("no row to write: each was left out before. See the counts by reason")
