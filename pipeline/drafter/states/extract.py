"""Write a store of hidden states, shard by shard.

Guarantees: nothing is computed unless the whole store fits on the disk. A shard is whole or absent. A store that was
stopped and continued has the same bytes as one that never stopped, since the rows alone decide which run together.
Refuses a store that was begun with other settings, or whose shards were changed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from pipeline.base.files import write_whole
from pipeline.drafter.rows import TrainingRows
from pipeline.drafter.states.manifest import (
    DTYPES,
    StateManifest,
    StoreError,
    StoreSize,
    begin,
    readable_size,
    settings_of,
    size_of,
    with_attestation,
    write,
)
from pipeline.drafter.states.shards import shard_bytes, shard_entry
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers
from pipeline.records import Json
from pipeline.shards.manifest import hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from pipeline.drafter.rows import TrainingRow
    from pipeline.drafter.training.packing import RowStates

BYTES_A_SHARD = 256 * 1024 * 1024
HEADER_A_ROW = 512
"""More bytes than a row takes in a header."""


class StatesBackend(Protocol):
    """Computes states: a target in this process, or served ones."""

    def states(self, rows: Sequence[TrainingRow], dtype: torch.dtype | None = None) -> list[RowStates]:
        """Return the rows with their states, in the order given."""
        ...


@dataclass(frozen=True, slots=True)
class ExtractionPlan:
    """Everything that decides a store's bytes.

    `accept_unsigned`: a store may be continued whose manifest no known key signed.
    """

    facts: TargetFacts
    layers: Layers
    rows: TrainingRows
    dtype: str
    computed: Mapping[str, str]
    bytes_a_shard: int = BYTES_A_SHARD
    accept_unsigned: bool = False

    @property
    def size(self) -> StoreSize:
        return size_of(self.rows.tokens, self.rows.emitted, self.facts.hidden_size, DTYPES[self.dtype])

    def settings(self) -> dict[str, Json]:
        return settings_of(self.facts, self.layers, self.rows, self.dtype, self.computed, self.bytes_a_shard)

    def begin(self, out: Path) -> StateManifest:
        """Return the manifest of a new or a continued store.

        It is signed if the rows' manifests are. Raises StoreError, OSError.
        """
        document = begin(out, self.settings(), self.size, accept_unsigned=self.accept_unsigned)
        return replace(document, signed=document.signed and self.rows.signed)

    def shards(self) -> list[range]:
        """Return the rows of each shard.

        As many as fit into its bytes, at least one.
        """
        found: list[range] = []
        start = taken = 0
        for index, entry in enumerate(self.rows.entries):
            own = size_of(len(entry.ids), entry.emitted, self.facts.hidden_size, DTYPES[self.dtype]).bytes
            if index > start and taken + own > self.bytes_a_shard:
                found.append(range(start, index))
                start, taken = index, 0
            taken += own
        return [*found, range(start, len(self.rows))]


def require_room(plan: ExtractionPlan, out: Path, *, free: int | None = None) -> None:
    """Raise StoreError unless the store fits on the disk.

    `free` is the room in bytes; by default what the disk reports.
    """
    there = sum(path.stat().st_size for path in out.glob("*.safetensors")) if out.is_dir() else 0
    if free is None:
        existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
    # One shard is written beside the store before it takes its place.
    left = max(plan.size.bytes - there, 0) + HEADER_A_ROW * len(plan.rows)
    if left + min(plan.bytes_a_shard, left) > free:
        raise StoreError(
            f"{out} needs {readable_size(left)} and one shard beside it, and the disk has {readable_size(free)} left. "
            "Make room, give --out on another disk, fewer rows, or --dtype bfloat16"
        )


def extract(
    plan: ExtractionPlan, target: StatesBackend, out: Path, *, attestation: str, progress: Callable[[int], None]
) -> StateManifest:
    """Write the missing shards and return the manifest.

    `progress` receives the number of rows written so far. Raises StoreError, OSError.

    Example:
        plan = ExtractionPlan(facts, layers, rows, "bfloat16", computed_with(dtype, device))
        require_room(plan, out)
        extract(plan, target, out, attestation=permit.attestation_sha256, progress=print)
    """
    plan.begin(out)  # a folder that is not ours is left as it is, without a lock file
    with hold(out):
        document = with_attestation(plan.begin(out), attestation)
        _check_written(document, out)
        write(out, document)
        shards = plan.shards()
        progress(sum(len(shard) for shard in shards[: len(document.shards)]))
        for number in range(len(document.shards), len(shards)):
            document = _write_shard(plan, target, out, document, shards[number])
            write(out, replace(document, complete=number + 1 == len(shards)))
            progress(shards[number].stop)
        document = replace(document, complete=True)
        write(out, document)
    return document


def _write_shard(
    plan: ExtractionPlan, target: StatesBackend, out: Path, document: StateManifest, rows: range
) -> StateManifest:
    states = target.states(plan.rows[rows.start : rows.stop], DTYPES[plan.dtype])
    data = shard_bytes(states, plan.rows.entries[rows.start : rows.stop])
    name = f"states-{len(document.shards):05d}.safetensors"

    def fill(file: BinaryIO) -> None:
        file.write(data)

    write_whole(out / name, fill)
    return replace(document, shards=(*document.shards, shard_entry(name, data, states)))


def _check_written(document: StateManifest, out: Path) -> None:
    for shard in document.shards:
        path = out / shard.file
        if not path.is_file():
            raise StoreError(f"{path} is gone since it was written. Put it back, or give another --out DIR")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                raise StoreError(f"{path} was changed since it was written. Put it back, or give another --out DIR")
