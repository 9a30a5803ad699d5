"""A drafter's directory, as SGLang and vLLM load it.

SGLang loads it with `--speculative-algorithm EAGLE3`. Guarantees: names, shapes, types and vocabulary are checked
before anything is written. The directory is complete or absent, and an existing one is never written into.
`embed_tokens` is left out, since the target's own is used and one engine would ignore any other; `d2t` and `t2d` are
left out where the draft vocabulary is the target's. What is read back is a drafter for the target that was given.
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
from pipeline.drafter.export.config import read_config, served_config
from pipeline.drafter.export.weights import D2T, EMBEDDING, T2D, check_weights
from pipeline.drafter.model.config import DraftVocabulary
from pipeline.drafter.model.model import Drafter
from pipeline.records import Json, RefusedError

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig
    from pipeline.drafter.target.files import TargetFacts

CONFIG, WEIGHTS, PROVENANCE = "config.json", "model.safetensors", "PROVENANCE.json"


class ExportError(Exception):
    """A drafter that cannot be served, or an unreadable directory."""


def export(
    out: Path,
    drafter: Drafter,
    target: TargetFacts,
    *,
    dtype: torch.dtype = torch.bfloat16,
    provenance: Mapping[str, Json] | None = None,
) -> None:
    """Write the drafter for this target into a new directory.

    Its weights are in `dtype`; `provenance` goes into a file of its own, which engines do not read. Raises ExportError,
    AuxIdsError, WeightsError, OSError.

    Example:
        export(Path("drafter"), drafter, target_facts(Path("target")))
    """
    config = drafter.config
    if (config.vocab_size, config.hidden_size) != (target.vocab_size, target.hidden_size):
        sizes = f"{config.vocab_size} tokens of {config.hidden_size} numbers"
        theirs = f"{target.vocab_size} of {target.hidden_size}"
        raise ExportError(f"the drafter is over {sizes}, the target over {theirs}, and it uses the target's embedding")
    tensors = served_tensors(drafter.state_dict(), config, dtype)
    check_weights(tensors, config)
    document = served_config(config, target, str(dtype).removeprefix("torch."))
    recorded: dict[str, Json] = {
        "target_weights_sha256": target.weights_sha256,
        "aux_layers": [*config.aux_layers],
        **(provenance or {}),
    }
    write_directory(
        out, {CONFIG: json_bytes(document), WEIGHTS: save(tensors, {"format": "pt"}), PROVENANCE: json_bytes(recorded)}
    )


def served_tensors(
    state: Mapping[str, torch.Tensor], config: DrafterConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the tensors as served: floats in `dtype`.

    Without mappings where they would be the identity.
    """
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
    """Load an exported drafter for decoding; `layers` overrule its config.

    Raises ExportError, ServingConfigError, AuxIdsError, LayerError, WeightsError, OSError.
    """
    config = read_config(_document(folder), target, layers)
    tensors = read_tensors(folder)
    own = tensors.pop(EMBEDDING, None)
    if own is not None and not torch.equal(own.float(), embedding.to(own.dtype).float().cpu()):
        raise ExportError(
            f"{folder} has an embedding of its own, which SGLang ignores for the target's: what it serves is not what "
            "was trained. Only drafters over the target's embedding are evaluated here"
        )
    check_weights(tensors, config)
    if D2T in tensors:
        vocabulary = DraftVocabulary(tensors[D2T], tensors[T2D])
    else:
        size = config.vocab_size
        vocabulary = DraftVocabulary(torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.bool))
    drafter = Drafter(config, vocabulary)
    drafter.load_state_dict(tensors, strict=config.draft_vocab_size < config.vocab_size)
    drafter.to(embedding.device, dtype)
    drafter.attach(embedding)
    drafter.eval().requires_grad_(requires_grad=False)
    return drafter


def trained_on(folder: Path) -> str | None:
    """Return the weights' sha256 of the drafter's own target.

    None where it is not recorded.
    """
    path = folder / PROVENANCE
    if not path.is_file():
        return None
    sha256 = read_object(path).get("target_weights_sha256")
    return sha256 if isinstance(sha256, str) else None


def read_provenance(folder: Path) -> tuple[Mapping[str, Json], str | None]:
    """Return the provenance and the dtype of an exported directory.

    Raises ExportError.
    """
    document = _document(folder)
    path = folder / PROVENANCE
    dtype = document.get("dtype")
    return read_object(path) if path.is_file() else {}, dtype if isinstance(dtype, str) else None


def write_directory(out: Path, files: Mapping[str, bytes]) -> None:
    """Write the files into a new directory, in one step.

    Raises ExportError, OSError.
    """
    if out.exists():
        raise ExportError(f"{out} exists. Give a new directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = aside(out)
    shutil.rmtree(part, ignore_errors=True)  # what a kill left
    part.mkdir()
    try:
        for name, data in files.items():

            def write(file: BinaryIO, data: bytes = data) -> None:
                file.write(data)

            write_whole(part / name, write)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(out.parent)


def read_object(path: Path) -> dict[str, Json]:
    """Read a JSON object of a drafter's directory.

    Raises ExportError, OSError.
    """
    if not path.is_file():
        raise ExportError(f"{path.parent} holds no {path.name}. Give a drafter's directory")
    try:
        return strict_object(path.read_bytes())
    except RefusedError as error:
        raise ExportError(f"{path}: {error.refusal.detail}") from error


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a drafter's directory. Raises ExportError."""
    try:
        return dict(load_file(folder / WEIGHTS))
    except (SafetensorError, FileNotFoundError) as error:
        raise ExportError(f"{folder / WEIGHTS} cannot be read ({error})") from error


def json_bytes(document: Mapping[str, Json]) -> bytes:
    """Return the document as indented JSON with a final newline."""
    return (json.dumps(document, indent=2) + "\n").encode("ascii")


def _document(folder: Path) -> dict[str, Json]:
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ExportError(f"{folder} holds no {CONFIG} with {WEIGHTS}. Give a directory that `pipeline export` wrote")
    return read_object(folder / CONFIG)
