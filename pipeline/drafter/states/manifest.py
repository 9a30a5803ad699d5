"""What a store of hidden states says of itself: `manifest.json`, its settings and its size.

Guarantees: a store is begun once and goes on under the settings it was begun with, which name everything that decides
its bytes: target, layers, dtype, what it is computed on, every row. The size is exact before anything is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from pipeline.base.files import aside, write_whole
from pipeline.base.json_lines import canonical
from pipeline.drafter.rows import TrainingRows
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers, boundaries
from pipeline.records import Json
from pipeline.shards.manifest import LOCK, MANIFEST

VERSION = 1
DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
AUX_MEANS = "residual stream, output of these 0-based layers, not normed, side by side: [tokens, 3 * hidden_size]"
LAST_MEANS = "the target's last state after its final norm, at emitted positions only: [emitted, hidden_size]"
SIZE_MEANS = "(3 + emitted share) states a token, where peers keep (3 + 1): the loss teaches emitted tokens alone"
IDS_A_TOKEN = 4


class StoreError(Exception):
    """A store that is not what its manifest says, was begun otherwise, or has no room."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """What the states take in bytes, and what peers would write who keep every last state; headers are under 1 %."""

    tokens: int
    emitted: int
    bytes: int
    peers_bytes: int

    def document(self) -> dict[str, Json]:
        return {
            "tokens": self.tokens,
            "emitted": self.emitted,
            "bytes": self.bytes,
            "bytes_a_token": round(self.bytes / self.tokens, 1),
            "peers_bytes_a_token": round(self.peers_bytes / self.tokens, 1),
            "meaning": SIZE_MEANS,
        }

    def __str__(self) -> str:
        less = 100 * (1 - self.bytes / self.peers_bytes)
        return (
            f"{readable_size(self.bytes)} for {self.tokens:,} tokens, of which {self.emitted:,} emitted: "
            f"{self.bytes / self.tokens:,.0f} bytes a token; {self.peers_bytes / self.tokens:,.0f} if the last state "
            f"were kept of every token, as peers do ({less:.0f} % less)"
        )


def size_of(tokens: int, emitted: int, hidden_size: int, dtype: torch.dtype) -> StoreSize:
    """Three states a token and its id, and one state an emitted token."""
    one, ids = hidden_size * dtype.itemsize, IDS_A_TOKEN * tokens
    return StoreSize(tokens, emitted, (3 * tokens + emitted) * one + ids, 4 * tokens * one + ids)


def readable_size(size: int) -> str:
    """Bytes in words."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - decimal units
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def settings_of(
    facts: TargetFacts, layers: Layers, rows: TrainingRows, dtype: str, computed: Mapping[str, str], bytes_a_shard: int
) -> dict[str, Json]:
    """What a store is begun with. `computed` says on what: other devices, dtypes and versions round otherwise."""
    return {
        "target": {
            "weights_sha256": facts.weights_sha256,
            "config_sha256": facts.config_sha256,
            "model_type": facts.model_type,
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
            "vocab_size": facts.vocab_size,
        },
        "layers": [*layers],
        "layers_as_boundaries": [*boundaries(layers)],
        "aux": AUX_MEANS,
        "last": LAST_MEANS,
        "dtype": dtype,
        "computed": dict(computed),
        "bytes_a_shard": bytes_a_shard,
        "rows": rows.document(),
    }


def computed_with(dtype: torch.dtype, device: torch.device) -> dict[str, str]:
    """On what states are computed, for a store's settings."""
    import transformers

    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
    return {"device": where, "dtype": str(dtype).removeprefix("torch."), **versions}


@dataclass(frozen=True, slots=True)
class StateShard:
    """One file of a store. `header_sha256` is of the part that says where each row lies and what its bytes hash to."""

    file: str
    sha256: str
    header_sha256: str
    bytes: int
    rows: int
    tokens: int
    emitted: int


@dataclass(frozen=True, slots=True)
class StateManifest:
    """A store's manifest. `attestations` are those under which its sessions ran."""

    settings: Mapping[str, Any]
    size: Mapping[str, Json]
    attestations: tuple[str, ...] = ()
    complete: bool = False
    shards: tuple[StateShard, ...] = ()


def begin(folder: Path, settings: Mapping[str, Json], size: StoreSize) -> StateManifest:
    """The manifest of a store that goes on, or of a new one. Raises StoreError, OSError."""
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder} is a file: give a folder, new or begun before, with --out DIR")
        ours = {LOCK, aside(path).name}
        if folder.is_dir() and (left := sorted({item.name for item in folder.iterdir()} - ours)):
            raise StoreError(f"{folder} holds {left[0]} but no {MANIFEST}: give a new --out DIR")
        return StateManifest(settings, size.document())
    old = read(folder)
    if told := "; ".join(_differences(old.settings, settings)):
        raise StoreError(f"{folder} was begun with other settings ({told}). Give the same, or another --out DIR")
    return old


def read(folder: Path) -> StateManifest:
    """The manifest as it lies there. Raises StoreError, OSError."""
    path = folder / MANIFEST
    if not path.is_file():
        raise StoreError(f"{folder} holds no {MANIFEST}: give the folder that `states` wrote (its --out)")
    try:
        found = json.loads(path.read_bytes())
        if found["states"] != VERSION:
            raise StoreError(f"{path} is of version {found['states']}, this program knows {VERSION}")
        if hashlib.sha256(canonical(found["settings"])).hexdigest() != found["settings_sha256"]:
            raise StoreError(f"{path}: the settings are not those that its digest names. Put the file back")
        shards = tuple(StateShard(**shard) for shard in found["shards"])
        _ = found["settings"]["target"]["hidden_size"], found["settings"]["dtype"], found["settings"]["layers"]
        return StateManifest(
            found["settings"], found["size"], tuple(found["attestations"]), bool(found["complete"]), shards
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is no manifest of hidden states ({type(error).__name__}: {error})") from error


def write(folder: Path, document: StateManifest) -> None:
    """Write `manifest.json` in one step. Raises OSError."""
    settings = dict(document.settings)
    text = json.dumps(
        {
            "states": VERSION,
            "settings": settings,
            "settings_sha256": hashlib.sha256(canonical(settings)).hexdigest(),
            "size": dict(document.size),
            "attestations": [*document.attestations],
            "complete": document.complete,
            "shards": [asdict(shard) for shard in document.shards],
        },
        indent=2,
    )

    def fill(file: BinaryIO) -> None:
        file.write(f"{text}\n".encode("ascii"))

    write_whole(folder / MANIFEST, fill)


def with_attestation(document: StateManifest, attestation: str) -> StateManifest:
    """The same with one attestation more, if it is a new one."""
    return replace(document, attestations=tuple(dict.fromkeys((*document.attestations, attestation))))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{where}{key}.")
        elif before != now:
            yield f"{where}{key} {_short(before)}, now {_short(now)}"


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"  # noqa: PLR2004 - a sentence must stay readable
