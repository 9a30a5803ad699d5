"""Where a served drafter's config says which states it reads: one key a convention, and none where the default holds.

Guarantees: every engine that reads the config takes the three states that the drafter was trained on, in their order.
The same number means the output of a layer to one engine and the number of layers run to another, and one engine reads
a key that the next ignores; so the default layers are written nowhere, others in both keys, each in its own convention.
Refuses layers that some engine would take for others, and a config that can be read in two ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.drafter.target.layers import FEWEST_LAYERS, Layers, aux_layers, boundaries, checked
from pipeline.records import Json

KEY = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
BOUNDARY_FAMILIES = ("deepseek", "kimi", "glm_moe_dsa", "glm4_moe_lite")
"""Targets of which SGLang takes the nested ids as numbers of layers run, unless the first is 1."""
OTHER_DEFAULT = ("minimax_m3",)
"""Targets of which SGLang's default is one layer above everybody else's."""


class AuxIdsError(Exception):
    """Layers that cannot be served, or ids that do not say which are meant."""


def written(layers: Layers, num_layers: int, model_type: str) -> dict[str, Json]:
    """The keys that name these layers to SGLang and vLLM; none for the default. Raises AuxIdsError, LayerError."""
    checked(layers, num_layers)
    if layers[-1] == num_layers - 1:
        raise AuxIdsError(
            f"the output of layer {layers[-1]}, the target's last, is what SGLang never hands to a drafter. Train on "
            "layers below it"
        )
    is_default = num_layers >= FEWEST_LAYERS and layers == aux_layers(num_layers)
    if is_default and not model_type.startswith(OTHER_DEFAULT):
        return {}
    run: list[Json] = [*boundaries(layers)]
    return {KEY: run, NESTED: {KEY: _nested(layers, model_type)}}


def read(config: Mapping[str, Json], num_layers: int, model_type: str) -> Layers:
    """The layers that a config means. Raises AuxIdsError, and LayerError for a default that collides."""
    top, inner = config.get(KEY), config.get(NESTED)
    nested = inner.get(KEY) if isinstance(inner, dict) else None
    if top is None and nested is None:
        return aux_layers(num_layers)
    if top is None:
        raise AuxIdsError(
            f"{NESTED}.{KEY} {nested} stands alone: SGLang reads outputs of layers in it, some exporters write numbers "
            "of layers run, and vLLM's newer runner reads none of it. Name the layers with --layers LOW,MID,HIGH"
        )
    layers = checked([number - 1 for number in _numbers(top)], num_layers)
    if nested is not None and _numbers(nested) not in _meanings(layers, model_type):
        raise AuxIdsError(
            f"{KEY} {top} and {NESTED}.{KEY} {nested} name different states. Name the layers with --layers LOW,MID,HIGH"
        )
    return layers


def _nested(layers: Layers, model_type: str) -> list[Json]:
    """As SGLang reads it: outputs of layers, but numbers of layers run in some families if the first is not 1."""
    if layers[0] == 1 or not model_type.startswith(BOUNDARY_FAMILIES):
        return [*layers]
    if layers[0] == 0:
        raise AuxIdsError(
            f"layer 0 of a {model_type} cannot be named to SGLang, which takes ids that begin with 1 for outputs and "
            "others for numbers of layers run. Train on layers from 1"
        )
    return [*boundaries(layers)]


def _meanings(layers: Layers, model_type: str) -> list[list[Json]]:
    """All nested ids that SGLang reads as these layers."""
    both = layers[0] == 1 and model_type.startswith(BOUNDARY_FAMILIES)
    run: list[Json] = [*boundaries(layers)]
    return [_nested(layers, model_type), *([run] if both else [])]


def _numbers(value: Json) -> Sequence[int]:
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise AuxIdsError(f"{KEY} is {value!r}: three whole numbers belong there")
    return [int(one) for one in value if type(one) is int]
