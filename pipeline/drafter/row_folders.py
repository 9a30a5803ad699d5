"""Folders of proven rows, as `generate` and `merge` write them, and whether they may be trained on together.

Guarantees: a folder is taken only where its shards are the bytes that its manifest names, each session names the
attestation under which it ran and the tree stayed as attested, and format and vocabulary are the same in all of them.
Rows without a format are taken only where the engine itself gave their ids. Refuses with the reason otherwise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.gate.gate import Job, Kind
from pipeline.records import Evidence, Json
from pipeline.shards.manifest import MANIFEST, ManifestError, require_files, stored, tree_held
from pipeline.shards.shards import SCHEMA

SHA256 = re.compile(r"[0-9a-f]{64}")


class RowsError(Exception):
    """Rows that cannot be trained on: what is wrong with them or their manifest, and what mends it."""


@dataclass(frozen=True, slots=True)
class RowFolder:
    """One folder and its manifest as it lies on disk."""

    path: Path
    document: Mapping[str, Any]
    sha256: str

    @property
    def format(self) -> str:
        """The format's name; empty where the model's own template made the prompts."""
        return str(self.document["settings"]["format"])

    @property
    def tokenizer_sha256(self) -> str:
        return str(self.document["settings"]["tokenizer_sha256"])

    @property
    def runs(self) -> tuple[Mapping[str, Any], ...]:
        """The runs of a merged set, or the folder's own, each with `attestation`, `settings` and `counted`."""
        return tuple(self.document.get("inputs") or [_own(self.document)])

    @property
    def attestations(self) -> tuple[str, ...]:
        named = [str(session["attestation"]) for session in self.document.get("sessions", ())]
        return tuple(dict.fromkeys(named or [str(run["attestation"]) for run in self.runs]))

    def tables(self) -> Iterator[pa.Table]:
        """The rows, a shard at a time. Raises RowsError where one is not what the manifest says."""
        for shard in self.document["shards"]:
            yield _table(self, self.path / shard["file"], shard)

    def summary(self) -> dict[str, Json]:
        """What a manifest that builds on these rows keeps of them."""
        return {
            "folder": self.path.name,
            "run": str(self.document["run"]),
            "manifest_sha256": self.sha256,
            "format": self.format,
            "tokenizer_sha256": self.tokenizer_sha256,
            "attestations": [*self.attestations],
            "weights_sha256": [*self.weights()],
            "counted": [_plain(run.get("counted")) for run in self.runs],
        }

    def weights(self) -> tuple[str, ...]:
        """Of which weights the rows are, where their manifest says so (a local engine's does)."""
        named = (run["settings"].get("weights_sha256") for run in self.runs)
        return tuple(dict.fromkeys(str(each) for each in named if each))


def read_folders(paths: Sequence[Path], *, accept_changed_tree: bool = False) -> tuple[RowFolder, ...]:
    """The folders, in the order given, if they agree. Raises RowsError, OSError."""
    if not paths:
        raise RowsError("no folder of rows was named: give at least one that `generate` or `merge` wrote")
    folders = tuple(_folder(path) for path in paths)
    for folder in folders:
        _check_proof(folder, accept_changed_tree=accept_changed_tree)
    _check_runs(folders)
    for name in ("format", "tokenizer_sha256"):
        found = {getattr(folder, name): folder for folder in folders}
        if len(found) > 1:
            told = ", ".join(f"{value[:12] or 'none'} in {folder.path}" for value, folder in found.items())
            raise RowsError(f"one drafter has one {name}, and these differ: {told}. Train on each of them by itself")
    _check_attestations(folders)
    return folders


def job_of(folders: Sequence[RowFolder]) -> Job:
    """What the gate is asked before hours of work on these rows.

    Rows with a format are proven by its vocabulary's contract, which must have passed. Rows without one hold the ids
    that an engine gave (nothing else is taken), so no contract of a vocabulary stands behind them and none is asked.
    """
    first = folders[0]
    return Job(Kind.TRAIN, format=first.format, tokenizer_sha256=first.tokenizer_sha256 if first.format else None)


def counted_risk(folders: Sequence[RowFolder], rows: int) -> str:
    """What training on `rows` rows of the grade `counted` risks, as far as their runs measured it."""
    bounds = Counter[str]()
    for run in (run for folder in folders for run in folder.runs):
        counted = run.get("counted")
        if isinstance(counted, dict) and counted.get("rows"):
            bounds[_bound(counted.get("same_count_mismatch"))] += int(counted["rows"])
    told = "; ".join(f"{number:,} {bound}" for bound, number in sorted(bounds.items()))
    return (
        f"{rows:,} rows are of the grade counted: each may be another split of the same text into as many tokens, and "
        f"a drafter would learn it. Measured on their routes: {told or 'not measured'}"
    )


def _bound(measured: object) -> str:
    if isinstance(measured, dict) and "upper95" in measured:
        wrong, n = measured.get("wrong"), measured.get("n")
        return f"with {wrong} wrong of {n}, at most {100 * float(measured['upper95']):.2f} % (95 %)"
    return "not measured" if measured is None else f"with {json.dumps(measured)}"


def _plain(value: object) -> Json:
    return json.loads(json.dumps(value))  # type: ignore[no-any-return]  # JSON came, JSON goes


def _own(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run of its own in the words of a merged set's inputs."""
    return {
        "attestation": document["sessions"][-1]["attestation"],
        "settings": document["settings"],
        "run": document["run"],
        "counted": document.get("counted"),
        "tree_unchanged": tree_held(document["sessions"]),
    }


def _folder(path: Path) -> RowFolder:
    try:
        document, sha256 = stored(path)
        require_files(path, document)
        folder = RowFolder(path, document, sha256)
        _ = folder.summary()
    except ManifestError as error:
        raise RowsError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RowsError(f"{path / MANIFEST} is no manifest of rows ({type(error).__name__}: {error})") from error
    return folder


def _check_proof(folder: RowFolder, *, accept_changed_tree: bool) -> None:
    sessions = folder.document.get("sessions", ())
    if sessions and sessions[-1].get("ended") is None:
        raise RowsError(f"{folder.path}: its last session never ended. Run its own command again")
    if wrong := [each for each in folder.attestations if not SHA256.fullmatch(each)] or not folder.attestations:
        named = repr(wrong[0][:40]) if isinstance(wrong, list) else "nothing"
        raise RowsError(f"{folder.path} names {named} for an attestation's hash: nothing proves its rows")
    if not SHA256.fullmatch(folder.tokenizer_sha256):
        raise RowsError(f"{folder.path} names {folder.tokenizer_sha256[:40]!r} where the hash of a tokenizer belongs")
    if not accept_changed_tree and not all(run.get("tree_unchanged") for run in folder.runs):
        raise RowsError(
            f"{folder.path}: the tree did not stay as attested while its rows were made, or nobody saw the end of a "
            "session. Look at its manifest; --accept-changed-tree takes its rows all the same"
        )


def _check_runs(folders: Sequence[RowFolder]) -> None:
    seen: dict[str, RowFolder] = {}
    for folder in folders:
        for run in folder.runs:
            if (other := seen.setdefault(str(run["run"]), folder)) is not folder:
                raise RowsError(f"{other.path} and {folder.path} both hold the run {run['run']}. Give it once")


def _check_attestations(folders: Sequence[RowFolder]) -> None:
    """An attestation is of one tree. Different ones may meet (runs lie weeks apart); one of two trees may not."""
    trees: dict[str, tuple[RowFolder, object]] = {}
    for folder in folders:
        for session in folder.document.get("sessions", ()):
            name = str(session["attestation"])
            other, tree = trees.setdefault(name, (folder, session["tree_start"]))
            if tree != session["tree_start"]:
                raise RowsError(
                    f"{other.path} and {folder.path} name the same attestation {name[:12]} for two different trees: "
                    "one of the manifests was changed"
                )


def _table(folder: RowFolder, path: Path, shard: Mapping[str, Any]) -> pa.Table:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != shard["sha256"]:
        raise RowsError(f"{path} was changed since it was written. Put it back, or leave {folder.path} out")
    try:
        table = pq.read_table(pa.BufferReader(data), partitioning=None)
    except pa.ArrowException as error:
        raise RowsError(f"{path} is no shard of this program ({error}). Leave {folder.path} out") from error
    if not table.schema.remove_metadata().equals(SCHEMA):
        raise RowsError(f"{path} has other columns than a shard of this program. Leave {folder.path} out")
    if table.num_rows != shard["rows"]:
        raise RowsError(f"{path} holds {table.num_rows} rows and its manifest says {shard['rows']}")
    _check_metadata(folder, path, table)
    return table


def _check_metadata(folder: RowFolder, path: Path, table: pa.Table) -> None:
    found = table.schema.metadata or {}
    wanted = {"run": folder.document["run"], "format": folder.format, "tokenizer_sha256": folder.tokenizer_sha256}
    for key, value in wanted.items():
        if found.get(key.encode()) != str(value).encode():
            raise RowsError(f"{path} is of another {key} than its manifest says ({value}). Leave {folder.path} out")
    grades = set(table.column("evidence").to_pylist())
    if unknown := sorted(grades - set(Evidence)):
        raise RowsError(f"{path} has rows of the evidence {unknown[0]!r}; there are {', '.join(Evidence)}")
    if not folder.format and (weak := sorted(grades - {Evidence.ENGINE_IDS})):
        raise RowsError(f"{path} has rows of the grade {weak[0]} and no format: only ids that an engine gave need none")
