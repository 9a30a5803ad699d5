"""The tensors of a served drafter: names, shapes, types, vocabulary.

Guarantees: what passes has exactly the keys that both engines place (one drops an unknown key silently, the other
stops), in the shapes of the config and one floating type, finite, and with a draft vocabulary whose two halves agree.
If the draft vocabulary is the target's, neither half is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
D2T, T2D, EMBEDDING = "d2t", "t2d", "embed_tokens.weight"


class WeightsError(Exception):
    """Tensors that are not those of a served drafter."""


def shapes_of(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Return every key and its shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "fc.weight": (hidden, 3 * config.target_hidden_size),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
    }
    if config.draft_vocab_size < config.vocab_size:
        shapes |= {D2T: (config.draft_vocab_size,), T2D: (config.vocab_size,)}
    return shapes


def check_weights(tensors: Mapping[str, torch.Tensor], config: DrafterConfig) -> None:
    """Raise WeightsError unless these are the config's tensors.

    None may be missing, foreign, of another shape or type, or not finite.
    """
    shapes = shapes_of(config)
    if different := sorted(shapes.keys() ^ tensors.keys()):
        state = "is missing" if different[0] in shapes else "is none that both engines place"
        raise WeightsError(f"the tensor {different[0]} {state}; {len(different)} keys differ in all")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise WeightsError(f"{name} has the shape {list(tensors[name].shape)}, its config says {list(shape)}")
    floats = {name: tensor for name, tensor in tensors.items() if name not in (D2T, T2D)}
    kinds = {tensor.dtype for tensor in floats.values()}
    if len(kinds) > 1 or not kinds <= {*FLOATS}:
        raise WeightsError(f"the weights are of {', '.join(sorted(map(str, kinds)))}: one floating type belongs there")
    for name, tensor in floats.items():
        if not tensor.isfinite().all():
            raise WeightsError(f"{name} holds numbers that are not finite. Take an earlier checkpoint")
    if D2T in shapes:
        check_vocabulary(tensors[D2T], tensors[T2D])


def target_ids(d2t: torch.Tensor) -> torch.Tensor:
    """Return the target's id of each draft head row, [D].

    `d2t` holds offsets, as engines read it.
    """
    return d2t + torch.arange(len(d2t), device=d2t.device)


def check_vocabulary(d2t: torch.Tensor, t2d: torch.Tensor) -> None:
    """Raise WeightsError unless both maps name the same tokens."""
    if d2t.dtype != torch.int64 or t2d.dtype != torch.bool:
        raise WeightsError(f"d2t and t2d are of {d2t.dtype} and {t2d.dtype}: int64 offsets and bool belong there")
    ids = target_ids(d2t)
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= len(t2d):
        raise WeightsError("d2t does not name different tokens of the target in ascending order")
    if not torch.equal(t2d.nonzero()[:, 0], ids):
        raise WeightsError("d2t and t2d name different tokens: the head's rows would mean others than were trained")
