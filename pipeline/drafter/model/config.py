"""Sizes of a drafter, and its draft vocabulary.

Guarantees: the config holds plain numbers that config.json and the weights must agree on; every width that the layer
needs is explicit. The draft vocabulary is the most frequent tokens of the data and every control token of the format,
in ascending order of id, so that the same data gives the same mapping. Both engines read it as `d2t[i] = target id - i`
and `t2d[target id] = is in the vocabulary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


TTT_LENGTH = 7
"""Steps of training-time test: EAGLE's and SpecForge's default."""
STEP_DECAY = 0.8
"""Weight of each step relative to the one before it, in both."""


class DrafterConfigError(Exception):
    """A target whose shape makes no drafter."""


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Sizes of one drafter.

    `aux_layers` are 0-based outputs; `target_hidden_size` is the width of one state.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    max_position_embeddings: int
    aux_layers: tuple[int, int, int]
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None


def drafter_config(config: Any, *, draft_vocab_size: int, layers: Sequence[int]) -> DrafterConfig:  # noqa: ANN401
    """Return the config of a drafter sized like its target.

    `config` is the text model's Hugging Face configuration. The rotary base is the target's and is written into the
    drafter's own config.json, since it is trained with it. Raises DrafterConfigError where the draft vocabulary is
    larger than the target's, where the target lacks a size or has no one rotary base, and for heads that do not divide.
    """
    vocabulary, hidden, heads = (_size(config, name) for name in ("vocab_size", "hidden_size", "num_attention_heads"))
    if not 0 < draft_vocab_size <= vocabulary:
        wanted = f"draft vocabulary of {draft_vocab_size} tokens, the target's has {vocabulary}"
        raise DrafterConfigError(f"{wanted}. Give --draft-vocabulary between 1 and that")
    low, mid, high = layers
    end = config.eos_token_id
    read = DrafterConfig(
        hidden_size=hidden,
        intermediate_size=_size(config, "intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        rope_theta=_rotary_base(config),
        vocab_size=vocabulary,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=hidden,
        max_position_embeddings=_size(config, "max_position_embeddings"),
        aux_layers=(low, mid, high),
        bos_token_id=config.bos_token_id,
        eos_token_id=end[0] if isinstance(end, list) else end,
        pad_token_id=config.pad_token_id,
    )
    if found := indivisible(read, own_head_dim=bool(getattr(config, "head_dim", None))):
        raise DrafterConfigError(f"the target's {found}")
    return read


def indivisible(config: DrafterConfig, *, own_head_dim: bool) -> str:
    """Return which sizes of a layer do not divide.

    The width need not be that of all heads, unless theirs is taken from it (`own_head_dim` false).
    """
    heads, shared, width = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    if heads % shared:
        return f"num_attention_heads is {heads} and num_key_value_heads {shared}: the one must divide the other"
    if not own_head_dim and width % heads:
        return f"hidden_size is {width} and num_attention_heads {heads}: without a head_dim they must divide"
    if config.head_dim % 2:
        return f"head_dim is {config.head_dim}: a rotary embedding needs an even one"
    return ""


def _size(config: Any, name: str) -> int:  # noqa: ANN401 - transformers' configs are untyped here
    value = getattr(config, name, None)
    if type(value) is not int or value < 1:
        raise DrafterConfigError(f"the target's {name} is {value!r}: a drafter of its size needs a whole number there")
    return value


def _rotary_base(config: Any) -> float:  # noqa: ANN401 - transformers' configs are untyped here
    """Return the one rotary base of all layers.

    As transformers runs it. Raises DrafterConfigError where there is none, or one for each type of layers.
    """
    rotary = getattr(config, "rope_parameters", None) or {}
    by_layers = {kind: held.get("rope_theta") for kind, held in rotary.items() if isinstance(held, dict)}
    found = by_layers or {"all layers": rotary.get("rope_theta", getattr(config, "rope_theta", None))}
    bases = {float(base) for base in found.values() if base is not None}
    if len(bases) != 1:
        told = ", ".join(f"{base} for {kind}" for kind, base in found.items())
        raise DrafterConfigError(f"the target's rope_theta is {told}: a drafter has one layer, with one rotary base")
    return bases.pop()


class VocabularyError(Exception):
    """A draft vocabulary that cannot be made as requested."""


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Offsets `d2t` int64 [D] and membership `t2d` bool [V].

    `coverage` is the share of counted tokens that the vocabulary contains.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor
    coverage: float = 1.0

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of each draft id, int64 [D], ascending."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


def choose_vocabulary(frequencies: torch.Tensor, size: int, always: Iterable[int] = ()) -> DraftVocabulary:
    """Choose the `size` most frequent tokens, `always` among them.

    `frequencies` [V] counts emitted tokens. Ties go to the lower id, and unused ids fill up a short list. Raises
    VocabularyError.

    Example:
        choose_vocabulary(torch.tensor([5, 0, 7, 1]), 2).target_ids  # tensor([0, 2])
    """
    vocabulary = len(frequencies)
    forced = torch.tensor(sorted(set(always)), dtype=torch.int64)
    if not 0 < size <= vocabulary:
        raise VocabularyError(f"a draft vocabulary of {size}: give --draft-vocabulary between 1 and {vocabulary}")
    if len(forced) > size:
        raise VocabularyError(f"{len(forced)} control tokens do not fit {size}. Give a larger --draft-vocabulary")
    if len(forced) and not 0 <= int(forced[0]) <= int(forced[-1]) < vocabulary:
        raise VocabularyError(f"control tokens {int(forced[0])}..{int(forced[-1])} are not below {vocabulary}")
    rank = frequencies.double().clone()
    rank[forced] = torch.inf
    chosen = torch.argsort(rank, descending=True, stable=True)[:size].sort().values
    t2d = torch.zeros(vocabulary, dtype=torch.bool)
    t2d[chosen] = True
    total = float(frequencies.sum())
    coverage = float(frequencies[chosen].sum()) / total if total else 1.0
    return DraftVocabulary(chosen - torch.arange(size), t2d, coverage)
