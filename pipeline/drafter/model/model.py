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

from pipeline.drafter.model.config import DrafterConfig
from pipeline.drafter.model.decoder_layer import DraftCache, LlamaLayer, Norm
from pipeline.drafter.model.loss import MaskMode, Teacher, document_starts, present, score, teacher_positions

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DraftVocabulary
    from pipeline.drafter.training.packing import PackedBatch

INITIAL_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class TttResult:
    """Of one batch: `loss` has the gradient; per step, float64 [K], detached: sums of losses, rows right, rows."""

    loss: torch.Tensor
    sums: torch.Tensor
    correct: torch.Tensor
    counts: torch.Tensor


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
        batch: PackedBatch,
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
        states = self.unroll(batch, rows, steps)
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

    def unroll(self, batch: PackedBatch, rows: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """States [A, h] before the norm of `rows` [A], ascending, after each step of training-time test."""
        inside = torch.arange(batch.tokens, device=rows.device) - document_starts(batch)
        embedded, fused = self._embedded(batch.ids), self.fuse(batch.aux)
        states: list[torch.Tensor] = self.midlayer.unroll(embedded, fused, rows, inside, batch.starts, steps)
        return states

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
        states: torch.Tensor = self.midlayer.decode(self._embedded(ids), hidden, positions, cache, mask)
        return states

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[ids].to(self.fc.weight.dtype)


def _needed(positions: torch.Tensor, there: torch.Tensor, tokens: int) -> torch.Tensor:
    """Rows that are supervised at some step, int64 [A], ascending."""
    needed = torch.zeros(tokens, dtype=torch.bool, device=positions.device)
    for step, found in enumerate(there):
        needed[positions[found] - 1 - step] = True
    return needed.nonzero()[:, 0]


def _last_rows(batch: PackedBatch) -> torch.Tensor:
    """Where the last state of a position is in `batch.last`, int64 [N]; states of all positions may be there too."""
    if len(batch.last) == batch.tokens:
        return torch.arange(batch.tokens, device=batch.ids.device)
    return (batch.mask.cumsum(0) - 1).clamp(min=0)
