"""The config.json of a served drafter, written and read.

Guarantees: SGLang and vLLM read from it the drafter that was trained. The rotary base is written in both forms, the old
keys and the new; `draft_vocab_size` is always written, since SGLang reads it unconditionally; the longest position is
the target's, since acceptance collapses past a shorter one. Refuses to read another architecture: more layers, biases,
norms that plain EAGLE-3 lacks, a tied head, a window, a scaled or partial rotary embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from pipeline.drafter.model.config import DrafterConfig, indivisible
from pipeline.drafter.target.contradictions import ROTARY
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
"""Switches of other models than plain EAGLE-3; off where absent."""
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
MOST_QUOTED = 40


class ServingConfigError(Exception):
    """A config of no plain EAGLE-3 drafter for this target."""


def served_config(config: DrafterConfig, target: TargetFacts, dtype: str) -> dict[str, Json]:
    """Return the config.json of a drafter. Raises AuxIdsError."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **layer_config(config, dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **written_aux_ids(config.aux_layers, target.num_layers, target.model_type),
    }


def layer_config(config: DrafterConfig, dtype: str) -> dict[str, Json]:
    """Return the Llama keys of layer, embedding and rotary base."""
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
    """Return the drafter's config; `layers` overrule the document's.

    Raises ServingConfigError, and AuxIdsError or LayerError where the document does not say which layers it means.
    """
    require_plain(document)
    require_target(document, target)
    if layers is None:
        chosen = read_aux_ids(document, target.num_layers, target.model_type)
    else:
        chosen = require_layers(layers, target.num_layers)
    sizes = {name: _number(document, name) for name in SIZES}
    if (epsilon := _finite(document.get("rms_norm_eps"))) is None:
        found = _quoted(document.get("rms_norm_eps"))
        raise ServingConfigError(f"rms_norm_eps is {found}: a finite number above 0 belongs there")
    read = DrafterConfig(
        **sizes,
        rms_norm_eps=epsilon,
        rope_theta=_rope_theta(document),
        draft_vocab_size=_number(document, "draft_vocab_size"),
        target_hidden_size=target.hidden_size,
        aux_layers=chosen,
        bos_token_id=_token(document, "bos_token_id"),
        eos_token_id=_token(document, "eos_token_id"),
        pad_token_id=_token(document, "pad_token_id"),
    )
    if found := indivisible(read, own_head_dim=document.get("head_dim") is not None):
        raise ServingConfigError(f"the drafter's {found}")
    return read


def require_plain(document: Mapping[str, Json]) -> None:
    """Raise ServingConfigError for any other architecture than plain EAGLE-3."""
    if (named := document.get("architectures")) != [ARCHITECTURE]:
        raise ServingConfigError(
            f"architectures is {named}: a served EAGLE-3 drafter with a Llama layer is {[ARCHITECTURE]}"
        )
    if on := [name for name in OTHER_VARIANTS if document.get(name)]:
        raise ServingConfigError(f"{', '.join(on)} is on: not the plain EAGLE-3 that is trained and evaluated here")
    if document.get("num_hidden_layers") != 1 or document.get("hidden_act", "silu") != "silu":
        found = f"{document.get('num_hidden_layers')} layers with {document.get('hidden_act')}"
        raise ServingConfigError(f"the drafter has {found}; EAGLE-3 has one with silu")
    if (window := document.get("sliding_window")) is not None:
        raise ServingConfigError(f"sliding_window is {window!r}: here each token sees all before it, as null says")
    _require_plain_rotary(document)


def _require_plain_rotary(document: Mapping[str, Json]) -> None:
    places: list[Mapping[str, Json]] = [document]
    for name in ROTARY:
        inner = document.get(name)
        if isinstance(inner, dict):
            places.append(inner)
            if layers := [kind for kind, held in inner.items() if isinstance(held, dict)]:
                raise ServingConfigError(f"{name} has settings for {', '.join(layers)}: a drafter has one layer")
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


def require_target(document: Mapping[str, Json], target: TargetFacts) -> None:
    """Raise ServingConfigError unless the drafter fits the target's sizes.

    The longest position too: acceptance collapses past a shorter one, and SGLang's server stops at it.
    """
    longest = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and (own := document.get("max_position_embeddings")) not in (None, longest):
        raise ServingConfigError(
            f"the drafter's max_position_embeddings is {own} and the target's {longest}: a drafter is served up to the "
            "target's. Write that into its config.json, if it was trained for as many"
        )
    for name, number in {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size}.items():
        if document.get(name) != number:
            raise ServingConfigError(
                f"the drafter's {name} is {document.get(name)} and the target's {number}: it reads the target's "
                "embedding, so they must be equal. Give the target that it was trained for"
            )
    if document.get("target_hidden_size") not in (None, target.hidden_size):
        width = document["target_hidden_size"]
        raise ServingConfigError(f"the drafter reads states of {width} numbers, the target's have {target.hidden_size}")


def _rope_theta(document: Mapping[str, Json]) -> float:
    """Return the rotary base, equal wherever it is named.

    transformers prefers `rope_scaling`, engines the top.
    """
    held = [inner for name in ROTARY if isinstance(inner := document.get(name), dict)]
    found = [document.get("rope_theta"), *(inner["rope_theta"] for inner in held if "rope_theta" in inner)]
    bases = {_finite(one) for one in found if one is not None}
    if len(bases) != 1 or (base := bases.pop()) is None:
        values = ", ".join("nothing" if one is None else _quoted(one) for one in found)
        raise ServingConfigError(
            f"rope_theta is {values}: one finite number above 0 belongs there, the same base in every place"
        )
    return base


def _number(document: Mapping[str, Json], name: str) -> int:
    value = document.get(name)
    if name == "head_dim" and value is None:
        return _number(document, "hidden_size") // _number(document, "num_attention_heads")
    if type(value) is not int or value < 1:
        raise ServingConfigError(f"{name} is {value!r}: a whole number from 1 belongs there")
    return value


def _finite(value: Json) -> float | None:
    """Return the value as a finite positive number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 < number < inf else None


def _quoted(value: Json) -> str:
    """Return the value for a message, cut after some digits."""
    text = repr(value)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…"


def _token(document: Mapping[str, Json], name: str) -> int | None:
    value = document.get(name)
    if isinstance(value, list):  # several end tokens; the config keeps the first
        value = value[0] if value else None
    return value if type(value) is int else None
