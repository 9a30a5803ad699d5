"""The config.json of a served drafter, to and from the drafter's own.

Guarantees: SGLang and vLLM read from it the drafter that was trained. The rotary base stands in both forms, the old
keys and the new; `draft_vocab_size` always stands there, since SGLang reads it unasked; the longest position is the
target's, since a shorter one makes acceptance collapse past it. Refuses to read what would be another architecture
(more layers, biases, norms that plain EAGLE-3 has not, a tied head, a window, a scaled or partial rotary embedding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from pipeline.drafter.model.config import DrafterConfig
from pipeline.drafter.target.layers import read_aux_ids, require_layers, written_aux_ids
from pipeline.records import Json

if TYPE_CHECKING:
    from pipeline.drafter.target.files import TargetFacts

ARCHITECTURE = "LlamaForCausalLMEagle3"
OTHER_VARIANTS = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "use_aux_norm",
    "norm_output",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
)
"""What makes it another model than plain EAGLE-3; off where absent."""


MOST_QUOTED = 40


class ServingConfigError(Exception):
    """A config that is not of a plain EAGLE-3 drafter for this target."""


def served_config(config: DrafterConfig, target: TargetFacts, dtype: str) -> dict[str, Json]:
    """The document. Raises AuxIdsError."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **layer_of(config, dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **written_aux_ids(config.aux_layers, target.num_layers, target.model_type),
    }


def layer_of(config: DrafterConfig, dtype: str) -> dict[str, Json]:
    """What any Llama config says of one decoder layer, its embedding and its rotary base."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "torch_dtype": dtype,
        "dtype": dtype,
    }


def read_config(
    document: Mapping[str, Json], target: TargetFacts, layers: Sequence[int] | None = None
) -> DrafterConfig:
    """The drafter's config; `layers` are taken instead of what the document says. Raises ServingConfigError and others.

    The others are AuxIdsError and LayerError, where the document does not say which layers it means.
    """
    if (named := document.get("architectures")) != [ARCHITECTURE]:
        raise ServingConfigError(
            f"architectures is {named}: a served EAGLE-3 drafter with a Llama layer is {[ARCHITECTURE]}"
        )
    _require_plain(document)
    _require_target(document, target)
    chosen = (
        read_aux_ids(document, target.num_layers, target.model_type)
        if layers is None
        else require_layers(layers, target.num_layers)
    )
    return DrafterConfig(
        **{name: _number(document, name) for name in WHOLE},
        rms_norm_eps=_real(document, "rms_norm_eps"),
        rope_theta=_rope_theta(document),
        draft_vocab_size=_number(document, "draft_vocab_size"),
        target_hidden_size=target.hidden_size,
        aux_layers=chosen,
        bos_token_id=_token(document, "bos_token_id"),
        eos_token_id=_token(document, "eos_token_id"),
        pad_token_id=_token(document, "pad_token_id"),
    )


WHOLE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)


def _require_plain(document: Mapping[str, Json]) -> None:
    on = [name for name in OTHER_VARIANTS if document.get(name)]
    if on:
        raise ServingConfigError(f"{', '.join(on)} is on: not the plain EAGLE-3 that is trained and evaluated here")
    if document.get("num_hidden_layers") != 1 or document.get("hidden_act", "silu") != "silu":
        told = f"{document.get('num_hidden_layers')} layers with {document.get('hidden_act')}"
        raise ServingConfigError(f"the drafter has {told}; EAGLE-3 has one with silu")
    if (window := document.get("sliding_window")) is not None:
        raise ServingConfigError(f"sliding_window is {window!r}: here each token sees all before it, as null says")
    _require_plain_rotary(document)


def _require_plain_rotary(document: Mapping[str, Json]) -> None:
    places: list[Mapping[str, Json]] = [document]
    for name in ("rope_scaling", "rope_parameters"):
        inner = document.get(name)
        if isinstance(inner, dict):
            places.append(inner)
        elif inner is not None:
            raise ServingConfigError(f"{name} is {inner!r}: null or an object belongs there")
    kinds = [place[key] for place in places[1:] for key in ("rope_type", "type") if key in place]
    if odd := [str(kind) for kind in kinds if kind != "default"]:
        raise ServingConfigError(f"the rotary embedding is scaled ({', '.join(odd)}); only default is known")
    shares = [place["partial_rotary_factor"] for place in places if "partial_rotary_factor" in place]
    if odd := [str(share) for share in shares if share is not None and (isinstance(share, bool) or share != 1)]:
        raise ServingConfigError(
            f"partial_rotary_factor is {', '.join(odd)}: here all of a head is rotated, as 1 or no factor says"
        )


def _require_target(document: Mapping[str, Json], target: TargetFacts) -> None:
    wanted = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size}
    for name, number in wanted.items():
        if document.get(name) != number:
            raise ServingConfigError(
                f"the drafter's {name} is {document.get(name)} and the target's {number}: it reads the target's "
                "embedding, so they must be equal. Give the target that it was trained for"
            )
    if document.get("target_hidden_size") not in (None, target.hidden_size):
        width = document["target_hidden_size"]
        raise ServingConfigError(f"the drafter reads states of {width} numbers, the target's have {target.hidden_size}")


def _rope_theta(document: Mapping[str, Json]) -> float:
    """The base, from either form; they must agree."""
    inner = document.get("rope_parameters")
    found = [document.get("rope_theta"), inner.get("rope_theta") if isinstance(inner, dict) else None]
    bases = {_finite(one) for one in found if one is not None}
    if len(bases) != 1 or (base := bases.pop()) is None:
        told = ", ".join("nothing" if one is None else _told(one) for one in found)
        raise ServingConfigError(
            f"rope_theta is {told}: one finite number above 0 belongs there, the same base in both forms"
        )
    return base


def _number(document: Mapping[str, Json], name: str) -> int:
    value = document.get(name)
    if name == "head_dim" and value is None:
        return _number(document, "hidden_size") // _number(document, "num_attention_heads")
    if type(value) is not int or value < 1:
        raise ServingConfigError(f"{name} is {value!r}: a whole number from 1 belongs there")
    return value


def _real(document: Mapping[str, Json], name: str) -> float:
    if (number := _finite(document.get(name))) is None:
        raise ServingConfigError(f"{name} is {_told(document.get(name))}: a finite number above 0 belongs there")
    return number


def _finite(value: Json) -> float | None:
    """The value as a number above 0; None where it is none, or so large that no float is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 < number < inf else None


def _told(value: Json) -> str:
    """The value in a sentence; 400 digits of it say no more than the first ones do."""
    text = repr(value)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…"


def _token(document: Mapping[str, Json], name: str) -> int | None:
    value = document.get(name)
    if isinstance(value, list):  # several end tokens, of which the drafter's config needs none
        value = value[0] if value else None
    return value if type(value) is int else None
