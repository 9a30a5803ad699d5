"""Proven rows as training takes them: ids exactly as they lie in the row, and which of them were emitted.

Guarantees: prompt ids and output ids, end to end and unchanged; the mask is True on the output ids and nowhere else, so
the end token is in and a prefilled `<think>`, which stands in the prompt, is out. A row that the policy leaves out is
counted by its reason, never cut to fit. Holds the ids of all rows in memory, four bytes a token.
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
    """Which rows are trained on: of this evidence or stronger, and of at most `longest` tokens, prompt and output."""

    min_evidence: Evidence = Evidence.STREAM_DELTAS
    longest: int | None = None

    def document(self) -> dict[str, Json]:
        return {"min_evidence": str(self.min_evidence), "longest": self.longest}


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row: `ids` [T] int64; `mask` [T] bool, True exactly on what was emitted; both on the CPU."""

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
    """A row as it waits in memory: `ids` int32 [T], the first `prompt` of which are the prompt's."""

    id: str
    ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    prompt: int
    evidence: str
    dataset: str

    @property
    def emitted(self) -> int:
        return len(self.ids) - self.prompt


class TrainingRows(Sequence[TrainingRow]):
    """The rows that are trained on, in the order of their folders; what was left out, by reason."""

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
        """A digest of every row's id, ids and border between prompt and output, in order."""
        digest = hashlib.sha256()
        for entry in self.entries:
            name = entry.id.encode("utf-8", "surrogatepass")
            digest.update(f"{len(name)} {len(entry.ids)} {entry.prompt} ".encode("ascii") + name)
            digest.update(np.ascontiguousarray(entry.ids, dtype="<i4").tobytes())
        return digest.hexdigest()

    def highest_id(self) -> int:
        return max(int(entry.ids.max()) for entry in self.entries)

    def risk(self) -> str | None:
        """What rows of the grade `counted` among these risk; None where there are none."""
        counted = self.evidence[str(Evidence.COUNTED)]
        return counted_risk(self.folders, counted) if counted else None

    def document(self) -> dict[str, Json]:
        """What a manifest that builds on these rows says of them."""
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
    """The row as tensors."""
    ids = torch.from_numpy(entry.ids.astype(np.int64))
    return TrainingRow(entry.id, ids, torch.arange(len(ids)) >= entry.prompt, Evidence(entry.evidence), entry.dataset)


def read_rows(
    paths: Sequence[Path], policy: RowPolicy | None = None, *, accept_changed_tree: bool = False
) -> TrainingRows:
    """The rows of these folders that the policy takes. Raises RowsError, also where none is left, and OSError."""
    policy = policy or RowPolicy()
    folders = read_folders(paths, accept_changed_tree=accept_changed_tree)
    entries: list[StoredRow] = []
    left_out: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for folder in folders:
        for table in folder.tables():
            for entry in _entries(table, folder):
                if why := _why_not(entry, policy, seen):
                    left_out[str(why)] += 1
                    continue
                seen.add((entry.dataset, entry.id))
                entries.append(entry)
    if not entries:
        told = ", ".join(f"{number:,} {why}" for why, number in sorted(left_out.items())) or "the folders hold none"
        raise RowsError(f"no row is left to train on: {told}. {_mend(left_out, policy)}")
    return TrainingRows(entries, folders, policy, left_out)


def _mend(left_out: Mapping[str, int], policy: RowPolicy) -> str:
    most = max(left_out, key=lambda why: left_out[why], default="")
    if most == LeftOut.WEAK_EVIDENCE:
        return "--min-evidence counted takes the weakest grade too, at its stated risk"
    if most == LeftOut.TOO_LONG:
        # Training asks for no longer rows than fit into a batch, so either flag may be what bounds them.
        return f"Raise what leaves them out above {policy.longest}: --longest, or in training --tokens-a-batch"
    return "Give folders with rows that emitted something"


def _why_not(entry: StoredRow, policy: RowPolicy, seen: set[tuple[str, str]]) -> LeftOut | None:
    if STRENGTH[entry.evidence] < STRENGTH[str(policy.min_evidence)]:
        return LeftOut.WEAK_EVIDENCE
    if not entry.emitted:
        return LeftOut.NOTHING_EMITTED
    if policy.longest is not None and len(entry.ids) > policy.longest:
        return LeftOut.TOO_LONG
    return LeftOut.REPEATED_ID if (entry.dataset, entry.id) in seen else None


def _entries(table: pa.Table, folder: RowFolder) -> Iterator[StoredRow]:
    names, grades, datasets, spans = (table.column(name).to_pylist() for name in ("id", "evidence", "dataset", "spans"))
    prompts, outputs = _lists(table, "prompt_ids"), _lists(table, "output_ids")
    for name, grade, dataset, own, prompt, output in zip(names, grades, datasets, spans, prompts, outputs, strict=True):
        _check_spans(name, own, len(output), folder)
        ids = np.concatenate([prompt, output])
        if (ids < 0).any():
            raise RowsError(
                f"row {name!r} in {folder.path} has the id {ids.min()}, and ids are numbers from 0. Generate it again"
            )
        yield StoredRow(name, ids, len(prompt), grade, dataset)


def _lists(table: pa.Table, name: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    for chunk in table.column(name).chunks:
        values, offsets = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        yield from (values[start:stop] for start, stop in itertools.pairwise(offsets))


def _check_spans(name: str, spans: Sequence[Mapping[str, int]], emitted: int, folder: RowFolder) -> None:
    at = 0
    for span in spans:
        if span["start"] != at or span["stop"] <= at:
            break
        at = span["stop"]
    else:
        if at == emitted:
            return
    raise RowsError(f"row {name!r} in {folder.path}: its spans do not cover its {emitted} emitted tokens one by one")
