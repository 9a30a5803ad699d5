"""The EAGLE-3 drafter: fused states, one decoder layer, a head.

Guarantees: the layer, its names and its order are those that SGLang and vLLM load (`midlayer.*`, embedding first, the
residual is the state before its norm, the state fed back is the one before `norm`). The embedding is the target's,
frozen, and not part of the weights. Training computes only rows that some step supervises, but step-0 keys and values
of all rows, which the others attend. Reference: EAGLE-3, arXiv 2503.01840; SafeAILab/EAGLE `cnets.py`.
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
    """Loss with gradient, and figures per step, float64 [K], detached.

    Figures of one batch: sums of losses, rows right, rows.
    """

    loss: torch.Tensor
    sums: torch.Tensor
    correct: torch.Tensor
    counts: torch.Tensor


class Drafter(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A drafter over `vocabulary`.

    Call `attach` with the target's embedding before use.

    Example:
        drafter = Drafter(config, vocabulary)
        drafter.attach(target.embedding)
        result = drafter(batch, teacher, MaskMode.ALIGNED, scales)
        result.loss.backward()
    """

    def __init__(
        self, config: DrafterConfig, vocabulary: DraftVocabulary, layer: type[LlamaLayer] = LlamaLayer
    ) -> None:
        """Initialise weights from torch's global seed.

        Normal with a spread of 0.02; norms are one.
        """
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
        """Share the target's embedding [V, h], frozen."""
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
        """Run training-time test over a batch.

        It takes one step per entry of `scales` [K]; the loss is sum_k scales[k] * sums[k]. With `exact`, a row is right
        only if the drafter's token is the target's likeliest of all.
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
        # `batch.last` holds states of emitted positions, or of all.
        is_full = len(batch.last) == batch.tokens
        last = batch.last[positions if is_full else (batch.mask.cumsum(0) - 1).clamp(min=0)[positions]]
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
        """Return states [A, h] before the norm, after each step.

        Of `rows` [A], ascending.
        """
        inside = torch.arange(batch.tokens, device=rows.device) - document_starts(batch)
        embedded, fused = self._embedded(batch.ids), self.fuse(batch.aux)
        states: list[torch.Tensor] = self.midlayer.unroll(embedded, fused, rows, inside, batch.starts, steps)
        return states

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """Fuse the target's three states, [.., 3h'] to [.., h]."""
        fused: torch.Tensor = self.fc(aux.to(self.fc.weight.dtype))
        return fused.to(self.fc.weight.dtype)  # the residual keeps the weights' precision under autocast

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits over the draft vocabulary, [.., D].

        `states` are as the layer gives them.
        """
        scores: torch.Tensor = self.lm_head(self.norm(states))
        return scores

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Map draft ids to target ids."""
        mapped: torch.Tensor = draft_ids + self.d2t[draft_ids]
        return mapped

    def new_cache(self) -> DraftCache:
        """Return an empty cache for `decode`."""
        return DraftCache()

    def decode(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: DraftCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return states [B, n, h] before the norm.

        Of tokens [B, n] with states [B, n, h] at rotary positions [B, n], which are appended to the cache. `mask` bool
        [n, all] says what each attends, of the cache with these; without it, everything earlier and itself.
        """
        states: torch.Tensor = self.midlayer.decode(self._embedded(ids), hidden, positions, cache, mask)
        return states

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[ids].to(self.fc.weight.dtype)


def _needed(positions: torch.Tensor, there: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return rows that some step supervises, int64 [A], ascending."""
    needed = torch.zeros(tokens, dtype=torch.bool, device=positions.device)
    for step, found in enumerate(there):
        needed[positions[found] - 1 - step] = True
    return needed.nonzero()[:, 0]
