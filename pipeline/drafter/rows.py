"""Training rows: exact ids and their emitted-token mask.

Guarantees: ids are prompt ids and output ids, concatenated and unchanged. The mask is True on the output ids alone:
the end token is in; a prefilled `<think>` belongs to the prompt and is out. A row that the policy leaves out is counted
by its reason and never cut to fit. The ids of all rows are held in memory, four bytes a token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import torch

from pipeline.drafter.row_folders import RowFolder, RowsError, counted_risk, read_folders
from pipeline.records import STRENGTH, Evidence, Json


class LeftOut(StrEnum):
    """Why a row is not trained on."""

    WEAK_EVIDENCE = "weak_evidence"
    TOO_LONG = "too_long"
    NOTHING_EMITTED = "nothing_emitted"
    REPEATED_ID = "repeated_id"


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """Which rows to train on, by evidence and length."""

    min_evidence: Evidence = Evidence.STREAM_DELTAS
    longest: int | None = None

    def document(self) -> dict[str, Json]:
        return {"min_evidence": str(self.min_evidence), "longest": self.longest}

    def refuses(self, entry: StoredRow) -> LeftOut | None:
        """Return why the row is left out; None if taken."""
        if STRENGTH[entry.evidence] < STRENGTH[str(self.min_evidence)]:
            return LeftOut.WEAK_EVIDENCE
        if not entry.emitted:
            return LeftOut.NOTHING_EMITTED
        if self.longest is not None and len(entry.ids) > self.longest:
            return LeftOut.TOO_LONG
        return None

    def remedy(self, left_out: Mapping[str, int]) -> str:
        """Say what would take most of the left-out rows."""
        most = max(left_out, key=lambda reason: left_out[reason], default="")
        if most == LeftOut.WEAK_EVIDENCE:
            return "--min-evidence counted takes the weakest grade too, at its stated risk"
        if most == LeftOut.TOO_LONG:
            # In training, rows must also fit into a batch, so either flag may be the limit.
            return f"Raise what leaves them out above {self.longest}: --longest, or in training --tokens-a-batch"
        return "Give folders with rows that emitted something"


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row as tensors on the CPU.

    `ids` [T] int64; `mask` [T] bool, True exactly on emitted tokens.
    """

    id: str
    ids: torch.Tensor
    mask: torch.Tensor
    evidence: Evidence
    dataset: str

    @property
    def length(self) -> int:
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row in memory.

    `ids` [T] int32, of which the first `prompt` are the prompt.
    """

    id: str
    ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    prompt: int
    evidence: str
    dataset: str

    @property
    def emitted(self) -> int:
        return len(self.ids) - self.prompt


class TrainingRows(Sequence[TrainingRow]):
    """The rows to train on, in folder order.

    Rows that were left out are counted by reason.
    """

    def __init__(
        self, entries: Sequence[StoredRow], folders: Sequence[RowFolder], policy: RowPolicy, left_out: Mapping[str, int]
    ) -> None:
        self.entries = tuple(entries)
        self.folders = tuple(folders)
        self.policy = policy
        self.left_out = dict(left_out)

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> TrainingRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TrainingRow]: ...

    def __getitem__(self, index: int | slice) -> TrainingRow | Sequence[TrainingRow]:
        if isinstance(index, slice):
            return [training_row(entry) for entry in self.entries[index]]
        return training_row(self.entries[index])

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, prompt and output."""
        return [len(entry.ids) for entry in self.entries]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def emitted(self) -> int:
        """Emitted tokens of all rows."""
        return sum(entry.emitted for entry in self.entries)

    @property
    def evidence(self) -> Counter[str]:
        return Counter(entry.evidence for entry in self.entries)

    @property
    def sha256(self) -> str:
        """Digest of each row's id, ids and prompt length.

        In the order of the rows.
        """
        digest = hashlib.sha256()
        for entry in self.entries:
            name = entry.id.encode("utf-8", "surrogatepass")
            digest.update(f"{len(name)} {len(entry.ids)} {entry.prompt} ".encode("ascii") + name)
            digest.update(np.ascontiguousarray(entry.ids, dtype="<i4").tobytes())
        return digest.hexdigest()

    def highest_id(self) -> int:
        return max(int(entry.ids.max()) for entry in self.entries)

    def risk(self) -> str | None:
        """Describe the risk of `counted` rows; None without any."""
        counted = self.evidence[str(Evidence.COUNTED)]
        return counted_risk(self.folders, counted) if counted else None

    def document(self) -> dict[str, Json]:
        """Return what a derived manifest records of these rows."""
        return {
            "policy": self.policy.document(),
            "rows": len(self),
            "tokens": self.tokens,
            "emitted": self.emitted,
            "sha256": self.sha256,
            "evidence": dict(sorted(self.evidence.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "counted_risk": self.risk(),
            "folders": [folder.summary() for folder in self.folders],
        }


def training_row(entry: StoredRow) -> TrainingRow:
    """Return the row as tensors."""
    ids = torch.from_numpy(entry.ids.astype(np.int64))
    return TrainingRow(entry.id, ids, torch.arange(len(ids)) >= entry.prompt, Evidence(entry.evidence), entry.dataset)


def read_rows(
    paths: Sequence[Path], policy: RowPolicy | None = None, *, accept_changed_tree: bool = False
) -> TrainingRows:
    """Return the rows of these folders that the policy takes.

    Raises RowsError, also where no row is left, and OSError.
    """
    policy = policy or RowPolicy()
    folders = read_folders(paths, accept_changed_tree=accept_changed_tree)
    entries: dict[tuple[str, str], StoredRow] = {}
    left_out: Counter[str] = Counter()
    for folder in folders:
        for table in folder.tables():
            for entry in _entries(table, folder):
                key = entry.dataset, entry.id
                reason = policy.refuses(entry) or (LeftOut.REPEATED_ID if key in entries else None)
                if reason is None:
                    entries[key] = entry
                else:
                    left_out[str(reason)] += 1
    if not entries:
        counts = ", ".join(f"{number:,} {reason}" for reason, number in sorted(left_out.items()))
        raise RowsError(f"no row is left to train on: {counts or 'the folders hold none'}. {policy.remedy(left_out)}")
    return TrainingRows([*entries.values()], folders, policy, left_out)


def _entries(table: pa.Table, folder: RowFolder) -> Iterator[StoredRow]:
    """Yield a shard's rows.

    Raises RowsError for a negative id or incomplete spans.
    """
    names, grades, datasets, spans = (table.column(name).to_pylist() for name in ("id", "evidence", "dataset", "spans"))
    prompts, outputs = _id_lists(table, "prompt_ids"), _id_lists(table, "output_ids")
    for name, grade, dataset, own, prompt, output in zip(names, grades, datasets, spans, prompts, outputs, strict=True):
        ends = [0, *(span["stop"] for span in own)]
        is_ascending = all(start < stop for start, stop in itertools.pairwise(ends))
        if not is_ascending or ends[:-1] != [span["start"] for span in own] or ends[-1] != len(output):
            where = f"row {name!r} in {folder.path}"
            raise RowsError(f"{where}: its spans do not cover its {len(output)} emitted tokens one by one")
        ids = np.concatenate([prompt, output])
        if (ids < 0).any():
            raise RowsError(
                f"row {name!r} in {folder.path} has the id {ids.min()}, and ids are numbers from 0. Generate it again"
            )
        yield StoredRow(name, ids, len(prompt), grade, dataset)


def _id_lists(table: pa.Table, name: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    for chunk in table.column(name).chunks:
        values, offsets = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        yield from (values[start:stop] for start, stop in itertools.pairwise(offsets))
