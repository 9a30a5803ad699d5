"""States that a served SGLang returns, as rows of numbers: which layers to ask it for, and that no row is missing.

Guarantees: a row of states for every token of `prompt + completion` but the last sampled one, or StatesError: a prefix
that came from the cache and all chunks of a prompt but the last have none, without a word of warning. Layers are asked
for by the convention of the model's family, and a family whose convention is not known is refused. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pipeline.records import Json

FLAGS: Final = ("--disable-radix-cache", "--chunked-prefill-size", "-1")
"""Without these the server leaves out rows."""

BY_OUTPUT: Final = frozenset({"llama", "qwen2", "qwen3"})
"""Families in which SGLang's id L means the output of layer L."""

BY_INPUT: Final = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"})
"""Families in which it means the input of layer L, unless the first id is 1, which adds one to each."""


class StatesError(Exception):
    """States that cannot be asked for, or that did not all come."""


def layer_ids(model_type: str, outputs: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """What `--return-aux-hidden-state-layer-ids` takes for the outputs of these layers, counted from 0."""
    if not outputs or min(outputs) < 0 or max(outputs) >= num_layers - 1:
        raise StatesError(f"layers {[*outputs]} of {num_layers}: SGLang captures 0 to {num_layers - 2}, not the last")
    if model_type in BY_OUTPUT:
        return tuple(outputs)
    if model_type not in BY_INPUT:
        raise StatesError(f"how SGLang counts the layers of {model_type} is not known here, so none is asked for")
    if outputs[0] == 0:
        raise StatesError(f"{model_type}: id 1 is read as a shift of all ids, so the output of layer 0 cannot be had")
    return tuple(layer + 1 for layer in outputs)


def flags(model_type: str, outputs: Sequence[int], num_layers: int) -> tuple[str, ...]:
    """The server's flags for these layers; no drafter is loaded by them."""
    ids = map(str, layer_ids(model_type, outputs, num_layers))
    aux = ("--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3")
    return (*aux, "--return-aux-hidden-state-layer-ids", *ids, *FLAGS)


def rows_of(meta: Mapping[str, Json], prompt_tokens: int, width: int) -> list[list[float]]:
    """The states of an answer of `/generate`, shape [prompt + completion - 1, width]; StatesError if one is missing."""
    if meta.get("cached_tokens"):
        raise StatesError(f"{meta['cached_tokens']} tokens came from the prefix cache and have no states. {_MEND}")
    parts, made = meta.get("hidden_states"), meta.get("completion_tokens")
    if not isinstance(parts, list) or not parts or not isinstance(made, int):
        raise StatesError(f"the server returned no states. {_MEND}")
    rows = [*_matrix(parts[0]), *[_vector(part) for part in parts[1:]]]
    if any(not math.isfinite(number) for row in rows for number in row):
        raise StatesError("the server's states are not finite")
    if len(rows) != (wanted := prompt_tokens + made - 1):
        raise StatesError(f"{len(rows)} rows of states for {wanted} tokens: a prompt was cut into chunks. {_MEND}")
    if any(len(row) != width for row in rows):
        raise StatesError(f"rows of {sorted({len(row) for row in rows})} numbers, {width} are wanted")
    return rows


_MEND = f"Start the server with {' '.join(FLAGS)}"


def _matrix(part: Json) -> list[list[float]]:
    if not isinstance(part, list) or not part:
        raise StatesError("the prompt's states are no matrix")
    return [_vector(row) for row in part]


def _vector(part: Json) -> list[float]:
    if not isinstance(part, list) or not all(isinstance(number, int | float) for number in part):
        raise StatesError("a row of states is no list of numbers")
    try:
        return [float(number) for number in part if isinstance(number, int | float)]
    except OverflowError:
        raise StatesError("a row of states holds a number that no float is") from None
