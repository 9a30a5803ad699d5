"""Which hidden states of the target the drafter reads.

Layers are 0-based and mean OUTPUTS of the residual stream. Elsewhere the same state has another number: as an input, as
a boundary (the number of layers run), or as an index into `output_hidden_states`, each one more.

Guarantees: three layers that exist, differ and ascend. Where the default numbers collide, engines silently take two
states for three, so such targets are refused. Configs are written so that every engine reads the states that the
drafter was trained on. One engine takes a number for a layer's output and another for the number of layers run, and one
reads a key that the next ignores; so default layers are not written at all, and others are written under both keys,
each in its own convention. Refuses layers that some engine would take for others, and a config with two readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pipeline.records import Json

Layers: TypeAlias = tuple[int, int, int]

FEWEST_LAYERS = 7
KEY = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
BOUNDARY_FAMILIES = ("deepseek", "kimi", "glm_moe_dsa", "glm4_moe_lite")
"""Families whose nested ids SGLang reads as numbers of layers run, unless the first is 1."""
OTHER_DEFAULT = ("minimax_m3",)
"""Families whose default layers in SGLang are one above everybody else's."""


class LayerError(Exception):
    """Layers that collide, descend or do not exist."""


def aux_layers(num_layers: int) -> Layers:
    """Return the default layers of public trainers.

    They are 1, n//2 - 1 and n - 4 of n layers. Raises LayerError for fewer than 7 layers.
    """
    chosen = (1, num_layers // 2 - 1, num_layers - 4)
    if num_layers < FEWEST_LAYERS:
        raise LayerError(
            f"a target of {num_layers} layers has the default layers {_listed(chosen)}, which are not three that "
            f"ascend; that takes {FEWEST_LAYERS} layers. Name three of its own with --layers LOW,MID,HIGH"
        )
    return chosen


def require_layers(layers: Sequence[int], num_layers: int) -> Layers:
    """Return three named layers that exist and ascend.

    Raises LayerError otherwise.
    """
    if len(layers) != 3:  # noqa: PLR2004 - EAGLE-3 fuses three
        raise LayerError(f"{len(layers)} layers were named ({_listed(layers)}): give three with --layers LOW,MID,HIGH")
    low, mid, high = layers
    if not 0 <= low < mid < high < num_layers:
        raise LayerError(
            f"layers {_listed(layers)} do not ascend within 0..{num_layers - 1}, the layers of this target. "
            "Give three that do with --layers LOW,MID,HIGH"
        )
    return low, mid, high


def layers_of(num_layers: int, named: Sequence[int] | None = None) -> Layers:
    """Return the named layers, else the default. Raises LayerError."""
    return aux_layers(num_layers) if named is None else require_layers(named, num_layers)


def boundaries(layers: Sequence[int]) -> tuple[int, ...]:
    """Return the layers as numbers of layers run.

    One more each, as vLLM and speculators count.
    """
    return tuple(layer + 1 for layer in layers)


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))


class AuxIdsError(Exception):
    """Layers that cannot be served, or ambiguous ids."""


def written_aux_ids(layers: Layers, num_layers: int, model_type: str) -> dict[str, Json]:
    """Return the config keys that name these layers to engines.

    There are none for the default. Raises AuxIdsError, LayerError.
    """
    require_layers(layers, num_layers)
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


def read_aux_ids(config: Mapping[str, Json], num_layers: int, model_type: str) -> Layers:
    """Return the layers that a config means.

    Raises AuxIdsError, and LayerError for a default that collides.
    """
    top, inner = config.get(KEY), config.get(NESTED)
    nested = inner.get(KEY) if isinstance(inner, dict) else None
    if top is None and nested is None:
        return aux_layers(num_layers)
    if top is None:
        raise AuxIdsError(
            f"{NESTED}.{KEY} {nested} stands alone: SGLang reads outputs of layers in it, some exporters write numbers "
            "of layers run, and vLLM's newer runner reads none of it. Name the layers with --layers LOW,MID,HIGH"
        )
    layers = require_layers([number - 1 for number in _numbers(top)], num_layers)
    if nested is not None:
        numbers, meanings = _numbers(nested), [_nested(layers, model_type)]
        if layers[0] == 1 and model_type.startswith(BOUNDARY_FAMILIES):  # SGLang reads both as these layers
            meanings.append([*boundaries(layers)])
        if numbers not in meanings:
            raise AuxIdsError(
                f"{KEY} {top} and {NESTED}.{KEY} {nested} name different states. "
                "Name the layers with --layers LOW,MID,HIGH"
            )
    return layers


def _nested(layers: Layers, model_type: str) -> list[Json]:
    """Return the nested ids as SGLang reads them.

    Outputs of layers; in some families numbers of layers run, if the first is not 1.
    """
    if layers[0] == 1 or not model_type.startswith(BOUNDARY_FAMILIES):
        return [*layers]
    if layers[0] == 0:
        raise AuxIdsError(
            f"layer 0 of a {model_type} cannot be named to SGLang, which takes ids that begin with 1 for outputs and "
            "others for numbers of layers run. Train on layers from 1"
        )
    return [*boundaries(layers)]


def _numbers(value: Json) -> Sequence[int]:
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise AuxIdsError(f"{KEY} is {value!r}: three whole numbers belong there")
    return [int(one) for one in value if type(one) is int]
