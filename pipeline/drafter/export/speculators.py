"""A served drafter to and from the format of speculators.

vLLM reads that format as well. Guarantees: the same tensors, bit for bit; only names, the place of settings and the
embedding change, which is part of that format and must be the target's. Refuses all but plain EAGLE-3: another
algorithm, more layers, a layer of another family, norms that the switches move (speculators' own trainer turns three
on), a trained embedding. An absent switch is refused too: vLLM and speculators' own class take its absence for opposite
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save

from pipeline.drafter.export.config import ARCHITECTURE, layer_config, read_config, served_config
from pipeline.drafter.export.serving import (
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    ExportError,
    json_bytes,
    read_object,
    read_tensors,
    trained_on,
    write_directory,
)
from pipeline.drafter.export.weights import EMBEDDING, check_weights
from pipeline.drafter.target.layers import KEY, boundaries
from pipeline.records import Json

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig
    from pipeline.drafter.target.files import TargetFacts

SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
AMBIGUOUS = ("norm_before_residual",)
"""The switch whose absence means True to vLLM and False to speculators."""
OUR_LAYER, THEIR_LAYER = "midlayer.", "layers.0."
VERIFIER = "verifier_"
OWN_IN_BOTH = frozenset({"architectures", "model_type", "transformers_version", "dtype", "torch_dtype"})
"""Keys that may differ between the whole and its layer."""


class SpeculatorsFormatError(Exception):
    """A directory without a plain EAGLE-3 drafter of this target."""


def to_speculators(
    folder: Path, out: Path, target: TargetFacts, embedding: torch.Tensor, *, verifier: str, draft_tokens: int
) -> None:
    """Write an exported drafter as a new directory for speculators.

    `verifier` is the target's name or path as a server will know it, `embedding` [V, h] the target's own,
    `draft_tokens` how many a server drafts a round. Raises ExportError, SpeculatorsFormatError, and what reading a
    config raises.
    """
    document = read_object(folder / CONFIG)
    config = read_config(document, target)
    if (trained := trained_on(folder)) not in (None, target.weights_sha256):
        raise ExportError(f"{folder} was trained on another target ({str(trained)[:12]}) than {target.directory}")
    tensors = read_tensors(folder)
    _require_target_embedding(folder, tensors.pop(EMBEDDING, None), embedding)
    check_weights(tensors, config)
    dtype = tensors["fc.weight"].dtype
    named = {name.replace(OUR_LAYER, THEIR_LAYER, 1): tensor for name, tensor in tensors.items()}
    named[EMBEDDING] = embedding.to(dtype).cpu().contiguous()
    files = {
        CONFIG: json_bytes(
            _config_for_speculators(config, target, str(dtype).removeprefix("torch."), verifier, draft_tokens)
        ),
        WEIGHTS: save(named, {"format": "pt"}),
    }
    if (folder / PROVENANCE).is_file():
        files[PROVENANCE] = (folder / PROVENANCE).read_bytes()
    write_directory(out, files)


def from_speculators(folder: Path, out: Path, target: TargetFacts, embedding: torch.Tensor) -> None:
    """Convert a speculators directory to one that SGLang loads.

    Raises as `to_speculators`.
    """
    document = read_object(folder / CONFIG)
    config = _config_from_speculators(document, target)
    given = {name: tensor for name, tensor in read_tensors(folder).items() if not name.startswith(VERIFIER)}
    tensors = {name.replace(THEIR_LAYER, OUR_LAYER, 1): tensor for name, tensor in given.items()}
    if len(tensors) < len(given):
        raise SpeculatorsFormatError(
            f"{folder} holds tensors of its layer under two names, {OUR_LAYER}… and {THEIR_LAYER}…"
        )
    _require_target_embedding(folder, tensors.pop(EMBEDDING, None), embedding)
    check_weights(tensors, config)
    dtype = str(tensors["fc.weight"].dtype).removeprefix("torch.")
    recorded: dict[str, Json] = {"converted_from": "speculators", "aux_layers": [*config.aux_layers]}
    files = {
        CONFIG: json_bytes(served_config(config, target, dtype)),
        WEIGHTS: save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"}),
        PROVENANCE: (folder / PROVENANCE).read_bytes() if (folder / PROVENANCE).is_file() else json_bytes(recorded),
    }
    write_directory(out, files)


def _require_target_embedding(folder: Path, found: torch.Tensor | None, embedding: torch.Tensor) -> None:
    """Raise SpeculatorsFormatError for an embedding other than the target's."""
    if found is not None and not torch.equal(found.cpu(), embedding.to(found.dtype).cpu()):
        raise SpeculatorsFormatError(
            f"{folder}: its embedding is not the target's, so it was trained, and SGLang would ignore it"
        )


def _config_for_speculators(
    config: DrafterConfig, target: TargetFacts, dtype: str, verifier: str, draft_tokens: int
) -> dict[str, Json]:
    """Return the config of a drafter in their format."""
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
        "transformer_layer_config": {"model_type": "llama", **layer_config(config, dtype)},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": draft_tokens}],
            "verifier": {"name_or_path": verifier, "architectures": [*(target.config.architectures or [])]},
        },
    }


def _config_from_speculators(document: Mapping[str, Json], target: TargetFacts) -> DrafterConfig:
    """Return the drafter's config from theirs.

    Raises SpeculatorsFormatError and what reading a config raises.
    """
    if document.get("speculators_model_type") != "eagle3":
        raise SpeculatorsFormatError(
            f"speculators_model_type is {document.get('speculators_model_type')!r}: only eagle3 is converted"
        )
    for name in SWITCHES:
        if document.get(name) or (name in AMBIGUOUS and name not in document):
            state = "on" if document.get(name) else "absent, which vLLM takes for on and speculators for off"
            raise SpeculatorsFormatError(
                f"{name} is {state}: SGLang has no such drafter, or would run another. Train with --no-norm switches"
            )
    layer = document.get("transformer_layer_config")
    if not isinstance(layer, dict) or layer.get("model_type") != "llama":
        kind = layer.get("model_type") if isinstance(layer, dict) else None
        raise SpeculatorsFormatError(f"its layer is of the family {kind!r}: only llama's is converted")
    twice = {
        name: (document[name], own)
        for name, own in layer.items()
        if name not in OWN_IN_BOTH and own is not None and document.get(name) not in (None, own)
    }
    if twice:
        told = ", ".join(f"{name} is {top!r} at the top and {own!r} in its layer" for name, (top, own) in twice.items())
        raise SpeculatorsFormatError(f"its config contradicts itself: {told}")
    if document.get("tie_word_embeddings"):
        raise SpeculatorsFormatError("tie_word_embeddings is on: the head of a drafter is its own")
    whole: dict[str, Json] = {
        **{name: value for name, value in layer.items() if name != "model_type"},
        "architectures": [ARCHITECTURE],
        "draft_vocab_size": document.get("draft_vocab_size"),
        "target_hidden_size": document.get("target_hidden_size"),
    }
    ids = document.get(KEY)
    return read_config(whole | ({} if ids is None else {KEY: ids}), target)
