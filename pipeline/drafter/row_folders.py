"""Folders of proven rows, and whether they belong together.

Guarantees: a folder is taken only if a known key signed its manifest, its shards are the bytes that the manifest names,
each session names the attestation it ran under, and the tree stayed as attested. All folders must agree on format and
vocabulary. Rows without a format are taken only if the engine returned their ids. Refuses with the reason otherwise.
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
from pipeline.shards.shards import OLD_SCHEMA, SCHEMA, with_prompt_evidence

SHA256 = re.compile(r"[0-9a-f]{64}")


class RowsError(Exception):
    """Unusable rows: what is wrong, and what mends it."""


@dataclass(frozen=True, slots=True)
class RowFolder:
    """One folder and its manifest on disk.

    `signer` is the id of the key that signed it, None where it was accepted unsigned.
    """

    path: Path
    document: Mapping[str, Any]
    sha256: str
    signer: str | None = None

    @classmethod
    def read(cls, path: Path, *, accept_unsigned: bool = False) -> RowFolder:
        """Read the manifest and check that its files exist.

        Raises RowsError, OSError.
        """
        try:
            document, sha256, signer = stored(path, accept_unsigned=accept_unsigned)
            require_files(path, document)
            folder = cls(path, document, sha256, signer)
            _ = folder.summary()
        except ManifestError as error:
            raise RowsError(str(error)) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RowsError(f"{path / MANIFEST} is no manifest of rows ({type(error).__name__}: {error})") from error
        return folder

    @property
    def format(self) -> str:
        """The format's name; empty for the model's own template."""
        return str(self.document["settings"]["format"])

    @property
    def tokenizer_sha256(self) -> str:
        return str(self.document["settings"]["tokenizer_sha256"])

    @property
    def runs(self) -> tuple[Mapping[str, Any], ...]:
        """The merged runs, or the folder's own run alike."""
        if inputs := self.document.get("inputs"):
            return tuple(inputs)
        sessions = self.document["sessions"]
        own = {
            "attestation": sessions[-1]["attestation"],
            "settings": self.document["settings"],
            "run": self.document["run"],
            "counted": self.document.get("counted"),
            "tree_unchanged": tree_held(sessions),
        }
        return (own,)

    @property
    def attestations(self) -> tuple[str, ...]:
        named = [str(session["attestation"]) for session in self.document.get("sessions", ())]
        return tuple(dict.fromkeys(named or [str(run["attestation"]) for run in self.runs]))

    def weights(self) -> tuple[str, ...]:
        """Return the recorded digests of the weights behind the rows.

        Only a local engine's manifest records them.
        """
        named = (run["settings"].get("weights_sha256") for run in self.runs)
        return tuple(dict.fromkeys(str(each) for each in named if each))

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, one shard at a time.

        Raises RowsError for a changed shard.
        """
        for shard in self.document["shards"]:
            yield _read_shard(self, self.path / shard["file"], shard)

    def summary(self) -> dict[str, Json]:
        """Return what a derived manifest records of this folder.

        The signer is left out where there is none, so that what was begun on unsigned rows goes on.
        """
        signed: dict[str, Json] = {} if self.signer is None else {"signed_by": self.signer}
        return signed | {
            "folder": self.path.name,
            "run": str(self.document["run"]),
            "manifest_sha256": self.sha256,
            "format": self.format,
            "tokenizer_sha256": self.tokenizer_sha256,
            "attestations": [*self.attestations],
            "weights_sha256": [*self.weights()],
            "counted": [json.loads(json.dumps(run.get("counted"))) for run in self.runs],
        }


def read_folders(
    paths: Sequence[Path], *, accept_changed_tree: bool = False, accept_unsigned: bool = False
) -> tuple[RowFolder, ...]:
    """Return the folders in the order given, if they agree.

    Raises RowsError, OSError.
    """
    if not paths:
        raise RowsError("no folder of rows was named: give at least one that `generate` or `merge` wrote")
    folders = tuple(RowFolder.read(path, accept_unsigned=accept_unsigned) for path in paths)
    for folder in folders:
        _require_proof(folder, accept_changed_tree=accept_changed_tree)
    _require_agreement(folders)
    return folders


def job_of(folders: Sequence[RowFolder]) -> Job:
    """Return the job that the gate must permit before training.

    Rows with a format are proven by its vocabulary's contract, which must have passed. Rows without a format hold ids
    that an engine returned (others are refused), so no vocabulary contract is required.
    """
    first = folders[0]
    return Job(Kind.TRAIN, format=first.format, tokenizer_sha256=first.tokenizer_sha256 if first.format else None)


def counted_risk(folders: Sequence[RowFolder], rows: int) -> str:
    """Describe the measured risk of training on `counted` rows."""
    bounds = Counter[str]()
    for run in (run for folder in folders for run in folder.runs):
        counted = run.get("counted")
        if isinstance(counted, dict) and counted.get("rows"):
            bounds[_measured_mismatch(counted.get("same_count_mismatch"))] += int(counted["rows"])
    measured = "; ".join(f"{number:,} {bound}" for bound, number in sorted(bounds.items()))
    return (
        f"{rows:,} rows are of the grade counted: each may be another split of the same text into as many tokens, and "
        f"a drafter would learn it. Measured on their routes: {measured or 'not measured'}"
    )


def _measured_mismatch(measured: object) -> str:
    if isinstance(measured, dict) and "upper95" in measured:
        wrong, n = measured.get("wrong"), measured.get("n")
        return f"with {wrong} wrong of {n}, at most {100 * float(measured['upper95']):.2f} % (95 %)"
    return "not measured" if measured is None else f"with {json.dumps(measured)}"


def _require_proof(folder: RowFolder, *, accept_changed_tree: bool) -> None:
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


def _require_agreement(folders: Sequence[RowFolder]) -> None:
    """Raise RowsError unless the folders fit each other.

    Refused are a run given twice, other vocabularies, and one attestation of two trees. Different attestations may
    meet, since runs lie weeks apart; one attestation is of one tree.
    """
    runs: dict[str, RowFolder] = {}
    for folder in folders:
        for run in folder.runs:
            if (other := runs.setdefault(str(run["run"]), folder)) is not folder:
                raise RowsError(f"{other.path} and {folder.path} both hold the run {run['run']}. Give it once")
    for name in ("format", "tokenizer_sha256"):
        found = {getattr(folder, name): folder for folder in folders}
        if len(found) > 1:
            values = ", ".join(f"{value[:12] or 'none'} in {folder.path}" for value, folder in found.items())
            raise RowsError(f"one drafter has one {name}, and these differ: {values}. Train on each of them by itself")
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


def _read_shard(folder: RowFolder, path: Path, shard: Mapping[str, Any]) -> pa.Table:
    """Return a shard's table, checked against the manifest.

    Raises RowsError, OSError.
    """
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != shard["sha256"]:
        raise RowsError(f"{path} was changed since it was written. Put it back, or leave {folder.path} out")
    try:
        table = pq.read_table(pa.BufferReader(data), partitioning=None)
    except pa.ArrowException as error:
        raise RowsError(f"{path} is no shard of this program ({error}). Leave {folder.path} out") from error
    if table.schema.remove_metadata() not in (SCHEMA, OLD_SCHEMA):
        raise RowsError(f"{path} has other columns than a shard of this program. Leave {folder.path} out")
    if table.num_rows != shard["rows"]:
        raise RowsError(f"{path} holds {table.num_rows} rows and its manifest says {shard['rows']}")
    found = table.schema.metadata or {}
    wanted = {"run": folder.document["run"], "format": folder.format, "tokenizer_sha256": folder.tokenizer_sha256}
    for key, value in wanted.items():
        if found.get(key.encode()) != str(value).encode():
            raise RowsError(f"{path} is of another {key} than its manifest says ({value}). Leave {folder.path} out")
    table = with_prompt_evidence(table)
    grades = {grade for name in ("evidence", "prompt_evidence") for grade in table.column(name).to_pylist()}
    if unknown := sorted(grades - set(Evidence)):
        raise RowsError(f"{path} has rows of the evidence {unknown[0]!r}; there are {', '.join(Evidence)}")
    if not folder.format and (weak := sorted({*table.column("evidence").to_pylist()} - {Evidence.ENGINE_IDS})):
        raise RowsError(f"{path} has rows of the grade {weak[0]} and no format: only ids that an engine gave need none")
    return table
