"""Training rows: exact ids and their emitted-token mask.

Guarantees: ids are prompt ids and output ids, concatenated and unchanged. The mask is True on the output ids alone:
the end token is in; a prefilled `<think>` belongs to the prompt and is out. A row that the policy leaves out is counted
by its reason and never cut to fit. Answers that stop without their end token, or end in a loop, are left out unless
they are asked for. The ids of all rows are held in memory, four bytes a token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, overload

import numpy as np
import pyarrow as pa
import torch

from pipeline.base.loops import is_looping
from pipeline.drafter.row_folders import RowFolder, RowsError, counted_risk, read_folders
from pipeline.records import Evidence, Json, weak_evidence
from pipeline.shards.shards import cut_rows

PROMPT_RISK = (
    "{:,} rows have a prompt that was only counted: another prompt of as many tokens may have been served, and the "
    "drafter would learn the answer to it. How often that is was not measured"
)


class LeftOut(StrEnum):
    """Why a row is not trained on."""

    WEAK_EVIDENCE = "weak_evidence"
    WEAK_PROMPT_EVIDENCE = "weak_prompt_evidence"
    TOO_LONG = "too_long"
    NOTHING_EMITTED = "nothing_emitted"
    LOOPING = "looping"
    CUT = "cut"
    REPEATED_ID = "repeated_id"


REMEDIES = {
    LeftOut.WEAK_EVIDENCE: "--min-evidence counted takes the weakest grade too, at its stated risk",
    LeftOut.WEAK_PROMPT_EVIDENCE: "--min-prompt-evidence counted takes prompts known by their count alone, at a risk",
    LeftOut.LOOPING: "--keep-looping takes them",
    LeftOut.CUT: "--keep-cut takes them",
}
"""The flag that takes the rows left out for a reason."""


class JudgedRow(Protocol):
    """What a policy looks at in a row."""

    @property
    def evidence(self) -> str: ...
    @property
    def prompt_evidence(self) -> str: ...
    @property
    def is_cut(self) -> bool: ...
    @property
    def is_looping(self) -> bool: ...
    @property
    def emitted(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """Which rows to train on: by evidence, end and length.

    A row is worth the weaker evidence of its output and its prompt; with `min_prompt_evidence` each has its own limit.
    """

    min_evidence: Evidence = Evidence.STREAM_DELTAS
    longest: int | None = None
    min_prompt_evidence: Evidence | None = None
    keep_cut: bool = False
    keep_looping: bool = False

    def document(self) -> dict[str, Json]:
        """Return the policy as JSON."""
        prompts = None if self.min_prompt_evidence is None else str(self.min_prompt_evidence)
        document: dict[str, Json] = {"min_evidence": str(self.min_evidence), "min_prompt_evidence": prompts}
        return document | {"longest": self.longest, "keep_cut": self.keep_cut, "keep_looping": self.keep_looping}

    def refuses(self, row: JudgedRow) -> LeftOut | None:
        """Return why the row is left out; None if taken."""
        if weak := weak_evidence(row.evidence, row.prompt_evidence, self.min_evidence, self.min_prompt_evidence):
            return LeftOut(weak)
        if not row.emitted:
            return LeftOut.NOTHING_EMITTED
        if row.is_looping and not self.keep_looping:
            return LeftOut.LOOPING
        if row.is_cut and not self.keep_cut:
            return LeftOut.CUT
        if self.longest is not None and row.length > self.longest:
            return LeftOut.TOO_LONG
        return None

    def remedy(self, left_out: Mapping[str, int]) -> str:
        """Say what would take most of the left-out rows."""
        most = max(left_out, key=lambda reason: left_out[reason], default="")
        if (flag := REMEDIES.get(LeftOut(most)) if most in set(LeftOut) else None) is not None:
            return flag
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
    prompt_evidence: str = str(Evidence.COUNTED)
    is_cut: bool = False
    is_looping: bool = False

    @property
    def length(self) -> int:
        return len(self.ids)

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
    def prompt_evidence(self) -> Counter[str]:
        return Counter(entry.prompt_evidence for entry in self.entries)

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
        prompts = self.prompt_evidence[str(Evidence.COUNTED)]
        told = [counted_risk(self.folders, counted)] if counted else []
        return ". ".join(told + [PROMPT_RISK.format(prompts)] * (prompts > 0)) or None

    @property
    def signed(self) -> bool:
        """Whether known keys signed all manifests they came from."""
        return all(folder.signer for folder in self.folders)

    def document(self) -> dict[str, Json]:
        """Return what a derived manifest records of these rows."""
        return {
            "policy": self.policy.document(),
            "rows": len(self),
            "tokens": self.tokens,
            "emitted": self.emitted,
            "sha256": self.sha256,
            "evidence": dict(sorted(self.evidence.items())),
            "prompt_evidence": dict(sorted(self.prompt_evidence.items())),
            "cut": sum(entry.is_cut for entry in self.entries),
            "looping": sum(entry.is_looping for entry in self.entries),
            "left_out": dict(sorted(self.left_out.items())),
            "counted_risk": self.risk(),
            "folders": [folder.summary() for folder in self.folders],
        }


def training_row(entry: StoredRow) -> TrainingRow:
    """Return the row as tensors."""
    ids = torch.from_numpy(entry.ids.astype(np.int64))
    return TrainingRow(entry.id, ids, torch.arange(len(ids)) >= entry.prompt, Evidence(entry.evidence), entry.dataset)


def read_rows(
    paths: Sequence[Path],
    policy: RowPolicy | None = None,
    *,
    accept_changed_tree: bool = False,
    accept_unsigned: bool = False,
) -> TrainingRows:
    """Return the rows of these folders that the policy takes.

    Raises RowsError, also where no row is left, and OSError.
    """
    policy = policy or RowPolicy()
    folders = read_folders(paths, accept_changed_tree=accept_changed_tree, accept_unsigned=accept_unsigned)
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
    columns = ("id", "evidence", "dataset", "spans", "prompt_evidence")
    told = zip(*(table.column(name).to_pylist() for name in columns), cut_rows(table), strict=True)
    prompts, outputs = _id_lists(table, "prompt_ids"), _id_lists(table, "output_ids")
    for (name, grade, dataset, own, prompt_grade, cut), prompt, output in zip(told, prompts, outputs, strict=True):
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
        looping = is_looping(output.tolist(), ((span["start"], span["stop"]) for span in own), ended=not cut)
        yield StoredRow(name, ids, len(prompt), grade, dataset, prompt_grade, cut, looping)


def _id_lists(table: pa.Table, name: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    for chunk in table.column(name).chunks:
        values, offsets = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        yield from (values[start:stop] for start, stop in itertools.pairwise(offsets))
