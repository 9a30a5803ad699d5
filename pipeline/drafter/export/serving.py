"""A drafter as a directory that SGLang (`--speculative-algorithm EAGLE3`) and vLLM load as it is, and back.

Guarantees: names, shapes, types and vocabulary are checked before anything is written; the directory is there whole
or not at all, and an existing one is never written into. `embed_tokens` is left out, since the target's own is used and
one engine would ignore any other; `d2t` and `t2d` are left out where the draft vocabulary is the target's. What is read
back is a drafter for the target that was given, and for no other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from pipeline.base.files import aside, sync_folder, write_whole
from pipeline.base.json_lines import strict_object
from pipeline.drafter.export import config as serving_config
from pipeline.drafter.export import weights as drafter_weights
from pipeline.drafter.export.weights import D2T, EMBEDDING, T2D
from pipeline.drafter.model.config import DraftVocabulary
from pipeline.drafter.model.model import Drafter
from pipeline.records import Json, RefusedError

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig
    from pipeline.drafter.target.files import TargetFacts

CONFIG, WEIGHTS, PROVENANCE = "config.json", "model.safetensors", "PROVENANCE.json"


class ExportError(Exception):
    """A drafter that cannot be served, or a directory that holds none."""


def export(
    out: Path,
    drafter: Drafter,
    target: TargetFacts,
    *,
    dtype: torch.dtype = torch.bfloat16,
    provenance: Mapping[str, Json] | None = None,
) -> None:
    """Write the drafter for this target, its weights in `dtype`, as a new directory `out`.

    `provenance` is told in a file of its own, which engines do not read. Raises ExportError, AuxIdsError, WeightsError,
    OSError.
    """
    config = drafter.config
    if (config.vocab_size, config.hidden_size) != (target.vocab_size, target.hidden_size):
        sizes = f"{config.vocab_size} tokens of {config.hidden_size} numbers"
        theirs = f"{target.vocab_size} of {target.hidden_size}"
        raise ExportError(f"the drafter is over {sizes}, the target over {theirs}, and it uses the target's embedding")
    tensors = served_tensors(drafter.state_dict(), config, dtype)
    drafter_weights.check_weights(tensors, config)
    document = serving_config.served_config(config, target, str(dtype).removeprefix("torch."))
    told: dict[str, Json] = {
        "target_weights_sha256": target.weights_sha256,
        "aux_layers": [*config.aux_layers],
        **(provenance or {}),
    }
    write_directory(out, {CONFIG: _json(document), WEIGHTS: save(tensors, {"format": "pt"}), PROVENANCE: _json(told)})


def served_tensors(
    state: Mapping[str, torch.Tensor], config: DrafterConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The drafter's tensors as they are served: floats in `dtype`, no mapping where it would be the identity."""
    left_out = {D2T, T2D} if config.draft_vocab_size == config.vocab_size else set()
    return {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in state.items()
        if name not in left_out
    }


def load_drafter(
    folder: Path,
    target: TargetFacts,
    embedding: torch.Tensor,
    *,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Drafter:
    """The drafter of an exported directory, ready to decode; `layers` overrules what its config says.

    Raises ExportError, ServingConfigError, AuxIdsError, LayerError, WeightsError, OSError.
    """
    config = serving_config.read_config(_document(folder), target, layers)
    tensors = _tensors(folder)
    own = tensors.pop(EMBEDDING, None)
    if own is not None and not torch.equal(own.float(), embedding.to(own.dtype).float().cpu()):
        raise ExportError(
            f"{folder} has an embedding of its own, which SGLang ignores for the target's: what it serves is not what "
            "was trained. Only drafters over the target's embedding are evaluated here"
        )
    drafter_weights.check_weights(tensors, config)
    drafter = Drafter(config, _vocabulary(tensors, config))
    drafter.load_state_dict(tensors, strict=config.draft_vocab_size < config.vocab_size)
    drafter.to(embedding.device, dtype)
    drafter.attach(embedding)
    drafter.eval().requires_grad_(requires_grad=False)
    return drafter


def trained_on(folder: Path) -> str | None:
    """The sha256 of the target's weights that the drafter was exported for; None where nothing says so."""
    path = folder / PROVENANCE
    if not path.is_file():
        return None
    told = _object(path).get("target_weights_sha256")
    return told if isinstance(told, str) else None


def read_provenance(folder: Path) -> tuple[Mapping[str, Json], str | None]:
    """What an exported directory says of its making, and the dtype of its weights. Raises ExportError."""
    document = _document(folder)
    path = folder / PROVENANCE
    dtype = document.get("dtype")
    return _object(path) if path.is_file() else {}, dtype if isinstance(dtype, str) else None


def write_directory(out: Path, files: Mapping[str, bytes]) -> None:
    """Write the files into a new directory, in one step. Raises ExportError, OSError."""
    if out.exists():
        raise ExportError(f"{out} exists. Give a new directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = aside(out)
    shutil.rmtree(part, ignore_errors=True)  # what a kill left
    part.mkdir()
    try:
        for name, data in files.items():
            write_whole(part / name, lambda file, data=data: _write(file, data))  # type: ignore[misc]  # bound on purpose
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(out.parent)


def _vocabulary(tensors: Mapping[str, torch.Tensor], config: DrafterConfig) -> DraftVocabulary:
    if D2T in tensors:
        return DraftVocabulary(tensors[D2T], tensors[T2D])
    size = config.vocab_size
    return DraftVocabulary(torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.bool))


def _document(folder: Path) -> dict[str, Json]:
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ExportError(f"{folder} holds no {CONFIG} with {WEIGHTS}. Give a directory that `pipeline export` wrote")
    return _object(folder / CONFIG)


def _object(path: Path) -> dict[str, Json]:
    try:
        return strict_object(path.read_bytes())
    except RefusedError as error:
        raise ExportError(f"{path}: {error.refusal.detail}") from error


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    try:
        return dict(load_file(folder / WEIGHTS))
    except SafetensorError as error:
        raise ExportError(f"{folder / WEIGHTS} cannot be read ({error})") from error


def _json(document: Mapping[str, Json]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode("ascii")


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)
