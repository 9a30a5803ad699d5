"""Read hidden states from safetensors shards, each row checked.

Guarantees: what is read is what was written. The manifest holds the hash of each shard's header, the header the hash of
each row's bytes, and both are compared on every read. Only a complete store opens. A shard holds the ids of its rows,
`aux` (layer outputs before any norm) and `last` (AFTER the final norm, at emitted positions alone). With h numbers a
state and a share s of emitted tokens that is (3 + s)h numbers a token; trainers that keep every last state store
(3 + 1)h.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from pipeline.drafter.row_folders import SHA256
from pipeline.drafter.rows import StoredRow, TrainingRow, training_row
from pipeline.drafter.states.manifest import DTYPES, StateManifest, StateShard, StoreError, read
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers, require_layers
from pipeline.drafter.training.packing import RowStates
from pipeline.records import Evidence
from pipeline.shards.manifest import MANIFEST

ROWS = "rows"
OPEN_AT_ONCE = 64
LENGTH = 8
"""Bytes of the number before a safetensors header that gives its length."""


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row's sizes and hashes, from a shard header.

    A header from before the last three says nothing of them: then no more than a count is sure of the prompt, and no
    end is sure of the output, so the row is held for cut.
    """

    id: str
    dataset: str
    evidence: str
    tokens: int
    emitted: int
    ids_hash: str
    states_hash: str
    prompt_evidence: str = str(Evidence.COUNTED)
    is_cut: bool = True
    is_looping: bool = False

    @property
    def length(self) -> int:
        return self.tokens


def shard_bytes(rows: Sequence[RowStates], entries: Sequence[StoredRow]) -> bytes:
    """Return a shard of these rows.

    The same rows give the same bytes. States keep the dtype they have.
    """
    tensors = {
        "ids": torch.cat([row.ids for row in rows]).to("cpu", torch.int32),
        "aux": torch.cat([row.aux.cpu() for row in rows]).contiguous(),
        "last": torch.cat([row.last.cpu() for row in rows]).contiguous(),
    }
    header: list[list[str | int | bool]] = []
    for row, entry in zip(rows, entries, strict=True):
        hashes = _hash(row.ids.cpu().to(torch.int32)), _hash(row.aux.cpu(), row.last.cpu())
        told = entry.prompt_evidence, entry.is_cut, entry.is_looping
        header.append([entry.id, entry.dataset, entry.evidence, row.length, int(row.last.shape[0]), *hashes, *told])
    # One metadata key: safetensors writes several in no fixed order.
    data: bytes = save(tensors, {ROWS: json.dumps(header)})
    return data


def shard_entry(file: str, data: bytes, rows: Sequence[RowStates]) -> StateShard:
    """Return the manifest's entry of a shard with these bytes."""
    tokens, emitted = sum(row.length for row in rows), sum(int(row.last.shape[0]) for row in rows)
    header = data[: LENGTH + int.from_bytes(data[:LENGTH], "little")]
    hashes = hashlib.sha256(data).hexdigest(), hashlib.sha256(header).hexdigest()
    return StateShard(file, *hashes, len(data), len(rows), tokens, emitted)


def _hash(*tensors: torch.Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B") if tensor.numel() else b"")
    return digest.hexdigest()


class StateStore:
    """A complete store, as a source of rows with states.

    States are on the CPU, in the dtype they were stored in.
    """

    def __init__(self, folder: Path, *, accept_unsigned: bool = False) -> None:
        """Read the manifest and every header. Raises StoreError, OSError."""
        self.folder = folder
        self.document: StateManifest = read(folder, accept_unsigned=accept_unsigned)
        if not self.document.complete:
            raise StoreError(f"{folder} is not whole yet. Run the command again that began it: it goes on")
        if not self.document.attestations or not all(map(SHA256.fullmatch, self.document.attestations)):
            raise StoreError(f"{folder} names no attestation under which its states were made: nothing proves them")
        settings = self.document.settings
        self.hidden_size = int(settings["target"]["hidden_size"])
        self.vocab_size = int(settings["target"]["vocab_size"])
        self.layers: Layers = require_layers(settings["layers"], int(settings["target"]["num_layers"]))
        self.dtype = DTYPES[settings["dtype"]]
        self._placed = [[*_header(folder, shard)] for shard in self.document.shards]
        _require_whole(folder, settings["rows"], self.document.shards)
        self._first = [0, *itertools.accumulate(len(rows) for rows in self._placed)]
        self._starts = [_starts(rows) for rows in self._placed]
        self._files: OrderedDict[int, Any] = OrderedDict()
        self.lengths: Sequence[int] = [row.tokens for rows in self._placed for row in rows]
        self.evidence: Sequence[str] = [row.evidence for rows in self._placed for row in rows]
        self.placed: Sequence[PlacedRow] = [row for rows in self._placed for row in rows]

    def __len__(self) -> int:
        return self._first[-1]

    @property
    def training(self) -> Sequence[TrainingRow]:
        """The rows without states, each read on access."""
        return _Rows(self)

    def rows(self, indices: Sequence[int]) -> list[RowStates]:
        """Return these rows with states, in this order.

        Raises StoreError for a changed byte.
        """
        found: list[RowStates] = []
        for index in indices:
            shard, place, placed = self._find(index)
            start, emitted = self._starts[shard][place]
            aux = self._slice(shard, "aux", start, start + placed.tokens)
            last = self._slice(shard, "last", emitted, emitted + placed.emitted)
            if _hash(aux, last) != placed.states_hash:
                raise _changed(self._path(shard), placed.id)
            row = self.row(index)
            found.append(RowStates(row.id, row.ids, row.mask, aux, last))
        return found

    def check_target(self, facts: TargetFacts) -> None:
        """Raise StoreError unless the states are this target's."""
        mine = self.document.settings["target"]
        for name in ("hidden_size", "vocab_size", "num_layers", "weights_sha256", "config_sha256"):
            if mine.get(name) != (found := getattr(facts, name)):
                raise StoreError(
                    f"{self.folder} holds states of a target whose {name} is {_cut(mine.get(name))}, and that of "
                    f"{facts.directory} is {_cut(found)}. Give the target that made them"
                )

    def verify(self) -> None:
        """Read everything. Raises StoreError for the first changed shard."""
        for shard in self.document.shards:
            with (self.folder / shard.file).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                    raise _changed(self.folder / shard.file)

    def row(self, index: int) -> TrainingRow:
        """Return one row without its states. Raises StoreError."""
        shard, place, placed = self._find(index)
        start = self._starts[shard][place][0]
        ids = self._slice(shard, "ids", start, start + placed.tokens)
        if _hash(ids) != placed.ids_hash:
            raise _changed(self._path(shard), placed.id)
        entry = StoredRow(placed.id, ids.numpy(), placed.tokens - placed.emitted, placed.evidence, placed.dataset)
        return training_row(entry)

    def _find(self, index: int) -> tuple[int, int, PlacedRow]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._first, index) - 1
        place = index - self._first[shard]
        return shard, place, self._placed[shard][place]

    def _path(self, shard: int) -> Path:
        return self.folder / self.document.shards[shard].file

    def _slice(self, shard: int, name: str, start: int, stop: int) -> torch.Tensor:
        try:
            file = self._files.pop(shard, None) or safe_open(self._path(shard), "pt")
            self._files[shard] = file
            if len(self._files) > OPEN_AT_ONCE:
                self._files.popitem(last=False)
            tensor: torch.Tensor = file.get_slice(name)[start:stop]
        except (SafetensorError, OSError) as error:
            raise StoreError(f"{self._path(shard)} cannot be read ({error}). Put it back, or extract anew") from error
        return tensor


class _Rows(Sequence[TrainingRow]):
    def __init__(self, store: StateStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    @overload
    def __getitem__(self, index: int) -> TrainingRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TrainingRow]: ...

    def __getitem__(self, index: int | slice) -> TrainingRow | Sequence[TrainingRow]:
        if isinstance(index, slice):
            return [self._store.row(at) for at in range(*index.indices(len(self)))]
        return self._store.row(index)


def _starts(rows: Sequence[PlacedRow]) -> list[tuple[int, int]]:
    tokens = itertools.accumulate((row.tokens for row in rows), initial=0)
    emitted = itertools.accumulate((row.emitted for row in rows), initial=0)
    return [*zip(tokens, emitted, strict=True)]


def _header(folder: Path, shard: StateShard) -> Iterator[PlacedRow]:
    path = folder / shard.file
    if not path.is_file():
        raise StoreError(f"{path} is gone since it was written. Put it back, or extract anew")
    with path.open("rb") as file:
        length = file.read(LENGTH)
        # Never more than the file has, whatever a changed length says.
        header = length + file.read(min(int.from_bytes(length, "little"), shard.bytes))
    if hashlib.sha256(header).hexdigest() != shard.header_sha256 or path.stat().st_size != shard.bytes:
        raise _changed(path)
    rows = [PlacedRow(*row) for row in json.loads(json.loads(header[LENGTH:])["__metadata__"][ROWS])]
    found = len(rows), sum(row.tokens for row in rows), sum(row.emitted for row in rows)
    if found != (shard.rows, shard.tokens, shard.emitted):
        raise StoreError(f"{folder / MANIFEST} says other numbers of {shard.file} than it holds. Put the file back")
    yield from rows


def _require_whole(folder: Path, rows: Mapping[str, Any], shards: Sequence[StateShard]) -> None:
    """Raise StoreError unless the shards hold all rows, each once."""
    for name in ("rows", "tokens", "emitted"):
        if (found := sum(getattr(shard, name) for shard in shards)) != rows.get(name):
            raise StoreError(
                f"{folder / MANIFEST} names shards of {found} {name}, and the store was begun with {rows.get(name)}. "
                "Put the file back"
            )
    if len({shard.sha256 for shard in shards}) != len(shards):
        raise StoreError(f"{folder / MANIFEST} names a shard twice. Put the file back")


def _changed(path: Path, row: str | None = None) -> StoreError:
    where = "" if row is None else f" (row {row!r})"
    return StoreError(f"{path} was changed since it was written{where}. Put it back, or extract into a new folder")


def _cut(value: object) -> str:
    return str(value)[:12]
