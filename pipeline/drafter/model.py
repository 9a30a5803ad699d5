"""EAGLE-3's drafter: three fused states of the target, one decoder layer over [embedding, state], a norm and a head.

Guarantees: the layer, its names and its order are those that SGLang and vLLM load (`midlayer.*`, embedding first, the
residual is the un-normed state, the state fed back is the one before `norm`). The embedding is the target's, frozen,
and is no part of the weights. In training, only rows that are supervised at some step are computed, but for the step-0
keys and values of all rows, which the others attend. Reference: EAGLE-3, arXiv 2503.01840; SafeAILab/EAGLE `cnets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from pipeline.drafter.attention import Segment, attend, segments
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.losses import Teacher, score
from pipeline.drafter.masks import MaskMode, document_starts, present, teacher_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.drafter.draft_vocabulary import DraftVocabulary
    from pipeline.drafter.packing import Batch

INITIAL_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class TttResult:
    """Of one batch: `loss` has the gradient; per step, float64 [K], detached: sums of losses, rows right, rows."""

    loss: torch.Tensor
    sums: torch.Tensor
    correct: torch.Tensor
    counts: torch.Tensor


class DraftCache:
    """Keys and values that decoding has seen, [B, kv heads, n, head_dim] each."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values, these at the end."""
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 2)
        self.values = values if self.values is None else torch.cat([self.values, values], 2)
        return self.keys, self.values

    def crop(self, length: int) -> None:
        """Forget all but the first `length`."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]

    def select(self, slots: torch.Tensor) -> None:
        """Keep these slots alone, in this order."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, slots], self.values[:, :, slots]


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Projections of the 2h-wide input [embedding, state] to heads, and back to h; rotary angles for positions."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.theta = config.rope_theta
        width = 2 * config.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def query(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[.., n, 2h] to rotated queries [.., heads, n, head_dim]."""
        return self._rotate(self._split(self.q_proj(inputs)), positions)

    def key_value(self, inputs: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[.., n, 2h] to rotated keys and to values, [.., kv heads, n, head_dim]."""
        return self._rotate(self._split(self.k_proj(inputs)), positions), self._split(self.v_proj(inputs))

    def widen(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values with one head for each query head."""
        groups = self.heads // self.kv_heads
        return pair if groups == 1 else (pair[0].repeat_interleave(groups, -3), pair[1].repeat_interleave(groups, -3))

    def out(self, heads: torch.Tensor) -> torch.Tensor:
        """[.., heads, n, head_dim] to [.., n, h]."""
        projected: torch.Tensor = self.o_proj(heads.transpose(-3, -2).flatten(-2))
        return projected

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = self.head_dim // 2
        powers = torch.arange(half, device=heads.device, dtype=torch.float32) / half
        angles = positions[..., None, :, None].float() * self.theta**-powers
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        low, high = heads[..., :half], heads[..., half:]
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)


class Norm(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Root mean square norm, in the weights' own precision even under autocast."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[.., h] to [.., h]."""
        wide = states.to(self.weight.dtype)
        return functional.rms_norm(wide, self.weight.shape, self.weight, self.epsilon)


class Mlp(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[.., h] to [.., h]."""
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return down


class LlamaLayer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The one decoder layer, Llama's but for its 2h-wide attention input and the norm of the state in it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def inputs(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What attention reads, [.., 2h]: the normed embedding first, then the normed state."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)

    def finish(self, hidden: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        """The layer's output from its un-normed input state and the attention output of its heads."""
        hidden = hidden + self.self_attn.out(heads)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Drafter(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A drafter over `vocabulary`; give it the target's embedding with `attach` before it is used."""

    def __init__(
        self, config: DrafterConfig, vocabulary: DraftVocabulary, layer: type[LlamaLayer] = LlamaLayer
    ) -> None:
        """Weights follow torch's global seed: normal with a spread of 0.02, norms one."""
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = layer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", vocabulary.d2t.clone())
        self.register_buffer("t2d", vocabulary.t2d.clone())
        self.register_buffer("embedding", torch.empty(0), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_SPREAD)

    def attach(self, embedding: torch.Tensor) -> None:
        """The target's embedding [V, h], shared and frozen."""
        self.embedding = embedding.detach()

    def forward(
        self,
        batch: Batch,
        teacher: Teacher,
        mode: MaskMode,
        scales: torch.Tensor,
        *,
        exact: bool = False,
    ) -> TttResult:
        """Training-time test over a batch, one step a number of `scales` [K]; the loss is sum_k scales[k] * sums[k].

        `exact` counts a row as right only if the target's likeliest token of all is the drafter's.
        """
        steps = len(scales)
        positions = teacher_positions(batch, mode)
        there = present(batch, positions, steps)
        rows = _needed(positions, there, batch.tokens)
        states = self._unroll(batch, rows, steps)
        at = torch.zeros(batch.tokens, dtype=torch.int64, device=rows.device)
        at[rows] = torch.arange(len(rows), device=rows.device)
        places = at[(positions[None] - 1 - torch.arange(steps, device=rows.device)[:, None]).clamp(min=0)]
        gathered = torch.stack([self.norm(state[place]) for state, place in zip(states, places, strict=True)])
        last = batch.last[_last_rows(batch)[positions]]
        scored = score(
            gathered,
            self.lm_head.weight,
            last,
            teacher,
            there,
            scales,
            kl=mode is MaskMode.SPECULATORS,
            named_only=mode is MaskMode.SPECFORGE,
            exact=exact,
        )
        return TttResult(scored.loss, scored.sums, scored.correct, scored.counted)

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """The target's three states [.., 3h'] as one [.., h]."""
        fused: torch.Tensor = self.fc(aux.to(self.fc.weight.dtype))
        return fused.to(self.fc.weight.dtype)  # the residual keeps the weights' precision under autocast

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Over the draft vocabulary, [.., D], of states as the layer gives them."""
        scores: torch.Tensor = self.lm_head(self.norm(states))
        return scores

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """The target's ids of draft ids."""
        mapped: torch.Tensor = draft_ids + self.d2t[draft_ids]
        return mapped

    def new_cache(self) -> DraftCache:
        """An empty cache for `decode`."""
        return DraftCache()

    def decode(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: DraftCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """States [B, n, h] before the norm, for tokens [B, n] with states [B, n, h] at rotary positions [B, n].

        What was seen before is in the cache, and these are appended to it. `mask` bool [n, all] says what each
        attends, of the cache with these; without it, all that came before it and itself.
        """
        layer = self.midlayer
        inputs = layer.inputs(self._embedded(ids), hidden)
        query = layer.self_attn.query(inputs, positions)
        key, value = cache.append(*layer.self_attn.key_value(inputs, positions))
        if mask is None:
            new, total = query.shape[-2], key.shape[-2]
            mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        key, value = layer.self_attn.widen((key, value))
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return layer.finish(hidden, heads)

    def _unroll(self, batch: Batch, rows: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """The states of `rows` [A, h] after each step."""
        layer = self.midlayer
        parts = segments(rows, batch.starts)
        fused = self.fuse(batch.aux)
        positions = torch.arange(batch.tokens, device=rows.device) - document_starts(batch)
        inputs = layer.inputs(self._embedded(_shifted(batch.ids, 1)), fused)
        key, value = layer.self_attn.widen(layer.self_attn.key_value(inputs, positions))
        hidden, inputs = fused[rows], inputs[rows]
        own: list[tuple[torch.Tensor, torch.Tensor]] = []
        found: list[torch.Tensor] = []
        for step in range(steps):
            if step:
                inputs = layer.inputs(self._embedded(_shifted(batch.ids, 1 + step)[rows]), hidden)
                own.append(layer.self_attn.widen(layer.self_attn.key_value(inputs, positions[rows] + step)))
            hidden = self._step(layer, inputs, hidden, positions[rows] + step, (key, value), own, parts)
            found.append(hidden)
        return found

    @staticmethod
    def _step(
        layer: LlamaLayer,
        inputs: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        first: tuple[torch.Tensor, torch.Tensor],
        own: Sequence[tuple[torch.Tensor, torch.Tensor]],
        parts: Sequence[Segment],
    ) -> torch.Tensor:
        query = layer.self_attn.query(inputs, positions)
        return layer.finish(hidden, attend(query, *first, list(own), parts))

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[ids].to(self.fc.weight.dtype)


def _needed(positions: torch.Tensor, there: torch.Tensor, tokens: int) -> torch.Tensor:
    """Rows that are supervised at some step, int64 [A], ascending."""
    needed = torch.zeros(tokens, dtype=torch.bool, device=positions.device)
    for step, found in enumerate(there):
        needed[positions[found] - 1 - step] = True
    return needed.nonzero()[:, 0]


def _shifted(ids: torch.Tensor, places: int) -> torch.Tensor:
    """Token r + places at r; what lies past the end is token 0, and no supervised row reads it."""
    return functional.pad(ids[places:], (0, min(places, len(ids))))


def _last_rows(batch: Batch) -> torch.Tensor:
    """Where the last state of a position is in `batch.last`, int64 [N]; states of all positions may be there too."""
    if len(batch.last) == batch.tokens:
        return torch.arange(batch.tokens, device=batch.ids.device)
    return (batch.mask.cumsum(0) - 1).clamp(min=0)
