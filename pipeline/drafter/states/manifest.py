"""The manifest of a store of hidden states.

Guarantees: a store is begun once and continues under the settings it was begun with. These name everything that decides
its bytes: target, layers, dtype, device and versions, every row. The size is exact before anything is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pipeline.base.files import aside
from pipeline.base.json_lines import canonical
from pipeline.drafter.rows import TrainingRows
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers, boundaries
from pipeline.records import Json
from pipeline.shards.manifest import LOCK, MANIFEST, ManifestError, write_document
from pipeline.shards.signature import SignatureError, signer_of

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
    """A changed, unfinished, differing or too large store."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """Bytes of the states, and of keeping every last state.

    `peers_bytes` is what trainers write that keep the last state of every token. Headers, under 1 %, are not counted.
    """

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
    """Return the exact size of the states.

    Three states and an id a token, and one state an emitted token.
    """
    one, ids = hidden_size * dtype.itemsize, IDS_A_TOKEN * tokens
    return StoreSize(tokens, emitted, (3 * tokens + emitted) * one + ids, 4 * tokens * one + ids)


def readable_size(size: int) -> str:
    """Return a number of bytes with its unit."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - decimal units
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def settings_of(
    facts: TargetFacts, layers: Layers, rows: TrainingRows, dtype: str, computed: Mapping[str, str], bytes_a_shard: int
) -> dict[str, Json]:
    """Return the settings that a store is begun with.

    `computed` names device, dtype and versions, since others round differently.
    """
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
    """Return what the states are computed with, for the settings."""
    import transformers

    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
    return {"device": where, "dtype": str(dtype).removeprefix("torch."), **versions}


@dataclass(frozen=True, slots=True)
class StateShard:
    """One file of a store.

    `header_sha256` covers the header, which has the place and the hashes of each row.
    """

    file: str
    sha256: str
    header_sha256: str
    bytes: int
    rows: int
    tokens: int
    emitted: int


@dataclass(frozen=True, slots=True)
class StateManifest:
    """A store's manifest.

    `attestations` are those that its sessions ran under. `signed` is False where it or its rows were taken unsigned.
    """

    settings: Mapping[str, Any]
    size: Mapping[str, Json]
    attestations: tuple[str, ...] = ()
    complete: bool = False
    shards: tuple[StateShard, ...] = ()
    signed: bool = True


def begin(
    folder: Path, settings: Mapping[str, Json], size: StoreSize, *, accept_unsigned: bool = False
) -> StateManifest:
    """Return the manifest of a new or a continued store.

    Raises StoreError, OSError.
    """
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder} is a file: give a folder, new or begun before, with --out DIR")
        ours = {LOCK, aside(path).name}
        if folder.is_dir() and (left := sorted({item.name for item in folder.iterdir()} - ours)):
            raise StoreError(f"{folder} holds {left[0]} but no {MANIFEST}: give a new --out DIR")
        return StateManifest(settings, size.document())
    old = read(folder, accept_unsigned=accept_unsigned)
    if differences := "; ".join(_differences(old.settings, settings)):
        raise StoreError(f"{folder} was begun with other settings ({differences}). Give the same, or another --out DIR")
    return old


def read(folder: Path, *, accept_unsigned: bool = False) -> StateManifest:
    """Return the manifest as stored.

    Raises StoreError, also where no known key signed it, and OSError.
    """
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
        signed = signer_of(path, found, accept_unsigned=accept_unsigned) is not None
        return StateManifest(
            found["settings"], found["size"], tuple(found["attestations"]), bool(found["complete"]), shards, signed
        )
    except SignatureError as error:
        raise StoreError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is no manifest of hidden states ({type(error).__name__}: {error})") from error


def write(folder: Path, document: StateManifest) -> None:
    """Write `manifest.json` in one step, signed if `document.signed`.

    Raises StoreError where no key can sign, OSError.
    """
    settings = dict(document.settings)
    content: dict[str, Json] = {
        "states": VERSION,
        "settings": settings,
        "settings_sha256": hashlib.sha256(canonical(settings)).hexdigest(),
        "size": dict(document.size),
        "attestations": [*document.attestations],
        "complete": document.complete,
        "shards": [asdict(shard) for shard in document.shards],
    }
    try:
        write_document(folder, content, sign=document.signed)
    except ManifestError as error:
        raise StoreError(str(error)) from error


def with_attestation(document: StateManifest, attestation: str) -> StateManifest:
    """Return the manifest with this attestation among its own."""
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
