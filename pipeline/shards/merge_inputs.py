"""Folders of finished runs, verified against their manifests.

Guarantees: a folder is accepted only if every shard and the quarantine are the bytes that its manifest names, no other
shard lies beside them, and its last session ended, so that its cost and its refusals are known. Refuses runs of
different formats or vocabularies, since their ids mean different things.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records import Json
from pipeline.shards.manifest import MANIFEST, ManifestError, require_files, stored, tree_held
from pipeline.shards.shards import OLD_SCHEMA, QUARANTINE, SCHEMA, with_prompt_evidence

BATCH = 512
"""Rows that are in memory at a time."""


class MergeError(Exception):
    """The folders cannot be merged, or not by this policy."""


@dataclass(frozen=True, slots=True)
class Input:
    """One run: its folder, manifest, and refused rows.

    `document` is the manifest as on disk and `sha256` its digest; `refused` counts rows by dataset and reason. `signer`
    is the id of the key that signed it, None where it was accepted unsigned.
    """

    folder: Path
    document: Mapping[str, Any]
    sha256: str
    refused: Mapping[tuple[str, str], int]
    signer: str | None = None

    @property
    def run(self) -> str:
        return str(self.document["run"])

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.document["settings"]
        return settings

    @property
    def route(self) -> str:
        return str(self.settings["route"])

    @property
    def usd(self) -> Decimal:
        return Decimal(str(self.document["cost"]["usd"]))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order. Raises MergeError.

        Where a shard is not what the manifest says.
        """
        for shard in self.document["shards"]:
            path = self.folder / shard["file"]
            data = path.read_bytes()  # once, so that the rows are those of the digest
            if hashlib.sha256(data).hexdigest() != shard["sha256"]:
                raise MergeError(f"{path} was changed since it was written. Put it back, or leave {self.folder} out")
            table = pq.ParquetFile(pa.BufferReader(data))
            self._check_schema(path, table, shard["rows"])
            for batch in table.iter_batches(batch_size=BATCH):
                if set(batch.column("route").to_pylist()) != {self.route}:
                    what = f"{path} holds rows of another route than {self.route}"
                    raise MergeError(f"{what}. Leave {self.folder} out")
                yield with_prompt_evidence(batch)

    def _check_schema(self, path: Path, table: pq.ParquetFile, rows: int) -> None:
        if table.schema_arrow.remove_metadata() not in (SCHEMA, OLD_SCHEMA):
            raise MergeError(f"{path} has other columns than a shard of this program. Leave {self.folder} out")
        if table.metadata.num_rows != rows:
            raise MergeError(f"{path} holds {table.metadata.num_rows} rows and its manifest says {rows}")
        metadata = table.schema_arrow.metadata or {}
        settings = {key: self.settings[key] for key in ("format", "tokenizer_sha256")}
        for key, value in {"run": self.run, **settings}.items():
            if metadata.get(key.encode()) != str(value).encode():
                raise MergeError(
                    f"{path} is of another {key} than its manifest says ({value}). Leave {self.folder} out"
                )

    def summary(self) -> dict[str, Json]:
        """Return what the merged manifest keeps of the run."""
        last = self.document["sessions"][-1]
        return {
            "folder": self.folder.name,
            "run": self.run,
            "manifest_sha256": self.sha256,
            "signed_by": self.signer,
            "settings": dict(self.settings),
            "attestation": last["attestation"],
            "audit": last.get("audit", ""),
            "tree_unchanged": tree_held(self.document["sessions"]),
            "complete": self.document.get("complete"),
            "cost": self.document["cost"],
            "counted": self.document.get("counted"),
            "refused": dict(self.document.get("refused_by_reason", {})),
        }


def read_inputs(folders: Sequence[Path], *, accept_unsigned: bool = False) -> list[Input]:
    """Read the runs, in the order given. Raises MergeError, OSError."""
    inputs = [_input(folder, accept_unsigned=accept_unsigned) for folder in folders]
    by_run: dict[str, Input] = {}
    for each in inputs:
        if (other := by_run.setdefault(each.run, each)) is not each:
            raise MergeError(f"{each.folder} and {other.folder} are the same run. Give it once")
    for key in ("format", "tokenizer_sha256"):
        values = {str(each.settings[key]): each.folder for each in inputs}
        if len(values) > 1:
            different = ", ".join(f"{value[:40]} in {folder}" for value, folder in values.items())
            raise MergeError(f"one set has one {key}, and these differ: {different}. Merge each of them by itself")
    return inputs


def _input(folder: Path, *, accept_unsigned: bool) -> Input:
    """Read one run. Raises MergeError, OSError."""
    try:
        document, sha256, signer = stored(folder, accept_unsigned=accept_unsigned)
        if "inputs" in document:
            raise MergeError(f"{folder} is a merged set. Merge the runs that it was made of")
        if document["sessions"][-1]["ended"] is None:
            raise MergeError(f"{folder}: its last session never ended. Run its own command again, then merge")
        require_files(folder, document)
        found = Input(folder, document, sha256, _refused(folder, document), signer)
        _ = (found.run, found.route, found.usd, found.summary(), found.settings["format"])
    except ManifestError as error:
        raise MergeError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, InvalidOperation) as error:
        raise MergeError(f"{folder / MANIFEST} is no manifest of a run ({type(error).__name__}: {error})") from error
    return found


def _refused(folder: Path, document: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    """Count refused rows by dataset and reason.

    Raises MergeError where the quarantine is not what the manifest says.
    """
    path, wanted = folder / QUARANTINE, document["quarantine"]["sha256"]
    digest, found = hashlib.sha256(), Counter[tuple[str, str]]()
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                row = json.loads(line)
                found[row.get("dataset") or document["settings"].get("dataset") or "", str(row["reason"])] += 1
    if wanted != digest.hexdigest() and (found or wanted is not None):
        raise MergeError(f"{path} is not what the manifest says. Run its own command again, or put the file back")
    return found
