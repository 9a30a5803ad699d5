"""Which of a target's hidden states the drafter reads: 0-based layers, whose residual-stream OUTPUTS are meant.

Guarantees: three layers that differ, ascend and exist. The same states have other numbers elsewhere (an input, a
boundary "so many layers have run", an index into `output_hidden_states`: one more each), and where the default numbers
collide, engines quietly take two states for three: so they are refused here, by policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Layers: TypeAlias = tuple[int, int, int]

FEWEST_LAYERS = 7


class LayerError(Exception):
    """Layers that collide, descend or do not exist."""


def aux_layers(num_layers: int) -> Layers:
    """The default of every public trainer: outputs of layers 1, n//2 - 1 and n - 4. Raises LayerError below n = 7."""
    chosen = (1, num_layers // 2 - 1, num_layers - 4)
    if num_layers < FEWEST_LAYERS:
        raise LayerError(
            f"a target of {num_layers} layers has the default layers {_listed(chosen)}, which are not three that "
            f"ascend; that takes {FEWEST_LAYERS} layers. Name three of its own with --layers LOW,MID,HIGH"
        )
    return chosen


def checked(layers: Sequence[int], num_layers: int) -> Layers:
    """Layers that somebody named, if there are three that differ, ascend and exist. Raises LayerError."""
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
    """The layers that were named, else the default. Raises LayerError."""
    return aux_layers(num_layers) if named is None else checked(named, num_layers)


def boundaries(layers: Sequence[int]) -> tuple[int, ...]:
    """The same states counted as "so many layers have run", as vLLM and speculators write them: one more each."""
    return tuple(layer + 1 for layer in layers)


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
