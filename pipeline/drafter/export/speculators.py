"""A served drafter to and from the format of speculators, which vLLM reads as well.

Guarantees: the same tensors, bit for bit; only names, the place of settings and the embedding change, which stands in
that format and must be the target's. Refuses what is not plain EAGLE-3: another algorithm, more layers, a layer of
another family, norms that the switches put elsewhere (speculators' own trainer turns three on), a trained embedding.
A switch that is absent is refused too: vLLM and speculators' own class take its absence for opposite things.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from pipeline.base.json_lines import strict_object
from pipeline.drafter.export import config as serving_config
from pipeline.drafter.export import weights as drafter_weights
from pipeline.drafter.export.serving import CONFIG, PROVENANCE, WEIGHTS, ExportError, trained_on, write_directory
from pipeline.drafter.export.weights import EMBEDDING
from pipeline.drafter.target.layers import KEY, boundaries
from pipeline.records import Json, RefusedError

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig
    from pipeline.drafter.target.files import TargetFacts

SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
CONSIDERED = ("norm_before_residual",)
"""The switch whose absence means True to vLLM and False to speculators."""
HERE, THERE = "midlayer.", "layers.0."
VERIFIER = "verifier_"


class SpeculatorsFormatError(Exception):
    """A directory of speculators that is not a plain EAGLE-3 drafter of this target."""


def to_speculators(
    folder: Path, out: Path, target: TargetFacts, embedding: torch.Tensor, *, verifier: str, draft_tokens: int
) -> None:
    """An exported drafter as a new directory in speculators' format.

    `verifier` is the target's name or path as a server will know it, `embedding` [V, h] the target's own,
    `draft_tokens` how many a server drafts a round. Raises ExportError, SpeculatorsFormatError, and what reading a
    config raises.
    """
    document = _object(folder / CONFIG)
    config = serving_config.read_config(document, target)
    if (trained := trained_on(folder)) not in (None, target.weights_sha256):
        raise ExportError(f"{folder} was trained on another target ({str(trained)[:12]}) than {target.directory}")
    tensors = _tensors(folder)
    _require_own(folder, tensors.pop(EMBEDDING, None), embedding)
    drafter_weights.check_weights(tensors, config)
    dtype = tensors["fc.weight"].dtype
    named = {name.replace(HERE, THERE, 1): tensor for name, tensor in tensors.items()}
    named[EMBEDDING] = embedding.to(dtype).cpu().contiguous()
    files = {
        CONFIG: _json(_theirs(config, target, str(dtype).removeprefix("torch."), verifier, draft_tokens)),
        WEIGHTS: save(named, {"format": "pt"}),
    }
    if (folder / PROVENANCE).is_file():
        files[PROVENANCE] = (folder / PROVENANCE).read_bytes()
    write_directory(out, files)


def from_speculators(folder: Path, out: Path, target: TargetFacts, embedding: torch.Tensor) -> None:
    """A directory of speculators as a new one that SGLang loads too. Raises as `to_speculators`."""
    document = _object(folder / CONFIG)
    config = _ours(document, target)
    given = {name: tensor for name, tensor in _tensors(folder).items() if not name.startswith(VERIFIER)}
    tensors = {name.replace(THERE, HERE, 1): tensor for name, tensor in given.items()}
    if len(tensors) < len(given):
        raise SpeculatorsFormatError(f"{folder} holds tensors of its layer under two names, {HERE}… and {THERE}…")
    _require_own(folder, tensors.pop(EMBEDDING, None), embedding)
    drafter_weights.check_weights(tensors, config)
    dtype = str(tensors["fc.weight"].dtype).removeprefix("torch.")
    told: dict[str, Json] = {"converted_from": "speculators", "aux_layers": [*config.aux_layers]}
    files = {
        CONFIG: _json(serving_config.served_config(config, target, dtype)),
        WEIGHTS: save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"}),
        PROVENANCE: (folder / PROVENANCE).read_bytes() if (folder / PROVENANCE).is_file() else _json(told),
    }
    write_directory(out, files)


def _require_own(folder: Path, found: torch.Tensor | None, embedding: torch.Tensor) -> None:
    if found is not None and not torch.equal(found.cpu(), embedding.to(found.dtype).cpu()):
        raise SpeculatorsFormatError(
            f"{folder}: its embedding is not the target's, so it was trained, and SGLang would ignore it"
        )


def _theirs(
    config: DrafterConfig, target: TargetFacts, dtype: str, verifier: str, draft_tokens: int
) -> dict[str, Json]:
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": config.draft_vocab_size,
        **dict.fromkeys(SWITCHES, False),
        "embed_requires_grad": False,
        "target_hidden_size": None,
        KEY: [*boundaries(config.aux_layers)],
        "tie_word_embeddings": False,
        "dtype": dtype,
        "transformer_layer_config": {"model_type": "llama", **serving_config.layer_of(config, dtype)},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": draft_tokens}],
            "verifier": {"name_or_path": verifier, "architectures": [*(target.config.architectures or [])]},
        },
    }


def _ours(document: Mapping[str, Json], target: TargetFacts) -> DrafterConfig:
    if document.get("speculators_model_type") != "eagle3":
        raise SpeculatorsFormatError(
            f"speculators_model_type is {document.get('speculators_model_type')!r}: only eagle3 is converted"
        )
    for name in SWITCHES:
        if document.get(name) or (name in CONSIDERED and name not in document):
            state = "on" if document.get(name) else "absent, which vLLM takes for on and speculators for off"
            raise SpeculatorsFormatError(
                f"{name} is {state}: SGLang has no such drafter, or would run another. Train with --no-norm switches"
            )
    layer = document.get("transformer_layer_config")
    if not isinstance(layer, dict) or layer.get("model_type") != "llama":
        kind = layer.get("model_type") if isinstance(layer, dict) else None
        raise SpeculatorsFormatError(f"its layer is of the family {kind!r}: only llama's is converted")
    flat = {name: value for name, value in layer.items() if name != "model_type"}
    whole = {
        "max_position_embeddings": target.config.get_text_config().max_position_embeddings,
        **flat,
        "architectures": [serving_config.ARCHITECTURE],
        "draft_vocab_size": document.get("draft_vocab_size"),
        "target_hidden_size": document.get("target_hidden_size"),
    }
    ids = document.get(KEY)
    return serving_config.read_config(whole | ({} if ids is None else {KEY: ids}), target)


def _object(path: Path) -> dict[str, Json]:
    if not path.is_file():
        raise ExportError(f"{path.parent} holds no {path.name}. Give a drafter's directory")
    try:
        return strict_object(path.read_bytes())
    except RefusedError as error:
        raise ExportError(f"{path}: {error.refusal.detail}") from error


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    try:
        return dict(load_file(folder / WEIGHTS))
    except (SafetensorError, FileNotFoundError) as error:
        raise ExportError(f"{folder / WEIGHTS} cannot be read ({error})") from error


def _json(document: Mapping[str, Json]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode("ascii")
