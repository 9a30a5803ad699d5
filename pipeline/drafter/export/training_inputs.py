"""Rows as training input of SpecForge and of speculators: `{"input_ids", "loss_mask", "sha256"}` a line.

Guarantees: ids and mask as they lie in the row, and never text, so that neither renders or tokenizes anything; the hash
is of both, so that what their loader yields can be compared with what was written. Both cut rows that are longer than
they were told, and drop rows without an emitted token, and say little of it: so such rows are refused here, and the
longest is named. The file's own account lies beside it, under a name that no loader of `*.json` takes for rows.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.base.files import write_whole
from pipeline.base.json_lines import line_of
from pipeline.drafter.rows import TrainingRow
from pipeline.records import JsonObject

ROWS = "rows.jsonl"
ACCOUNT = "rows.manifest"


class TrainingInputError(Exception):
    """A row that a loader would drop or cut, or a folder that is in use."""


@dataclass(slots=True)
class Account:
    """What was written."""

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
    """sha256 of the ids as little-endian 32-bit numbers, then the mask, a byte of 0 or 1 each."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids) + bytes(int(one) for one in mask)).hexdigest()


def write_inputs(out: Path, rows: Iterable[TrainingRow], source: JsonObject) -> Account:
    """Write `rows.jsonl` into a new folder, and beside it where the rows come from. Raises TrainingInputError, OSError.

    `source` is told in the account as it is given. What fails leaves no file, so that the same folder can be given
    again.
    """
    if out.exists() and any(out.iterdir()):
        raise TrainingInputError(f"{out} is not empty. Give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    try:
        return _write_both(out, rows, source)
    except BaseException:
        (out / ROWS).unlink(missing_ok=True)
        raise


def _write_both(out: Path, rows: Iterable[TrainingRow], source: JsonObject) -> Account:
    account = Account()

    def fill(file: BinaryIO) -> None:
        file.writelines(_lines(rows, account))

    write_whole(out / ROWS, fill)
    document = {
        "rows": account.rows,
        "tokens": account.tokens,
        "supervised_tokens": account.supervised,
        "longest_row": account.longest,
        "sha256": hashlib.sha256((out / ROWS).read_bytes()).hexdigest(),
        "source": dict(source),
    }
    text = json.dumps(document, indent=2) + "\n"
    write_whole(out / ACCOUNT, lambda file: _write(file, text))
    return account


def _lines(rows: Iterable[TrainingRow], account: Account) -> Iterator[bytes]:
    for row in rows:
        ids, mask = row.ids.tolist(), row.mask.int().tolist()
        if len(ids) != len(mask) or not any(mask):
            what = f"{len(ids)} ids, {len(mask)} marks, {sum(mask)} of them emitted"
            raise TrainingInputError(f"row {row.id!r} has {what}: loaders drop such a row without a word. Leave it out")
        account.add(len(ids), sum(mask))
        yield line_of({"input_ids": ids, "loss_mask": mask, "sha256": hash_of(ids, mask)})
    if not account.rows:
        raise TrainingInputError("no row to write: each was left out before. See the counts by reason")


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode("ascii"))
