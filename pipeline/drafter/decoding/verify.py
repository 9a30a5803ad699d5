"""The target's side of a round: its forward passes over a key-value cache that keeps what was accepted.

Guarantees: plain and speculative decoding take their tokens from the same pass of the same cache, so that they differ
by what is asked and not by how; the states that the drafter reads come from the hooks that make its training data.
Refuses targets whose cache cannot give back what was not accepted (sliding windows, recurrent states).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pipeline.drafter.decoding.trees import ROOT, Tree

if TYPE_CHECKING:
    from pipeline.drafter.target.hidden_states import Target
    from pipeline.records import Ids


class VerifyError(Exception):
    """A target that cannot verify drafts, or a prompt that it has no room for."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward pass of n tokens gave: `logits` [n, V] and `aux` [n, 3h], both float32.

    After a prompt n is 1 for the logits, which are those of its last token.
    """

    logits: torch.Tensor
    aux: torch.Tensor


class Verifier:
    """One sequence on the target: begin with its prompt, then check drafts and keep what was accepted."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.passes = 0
        self._length = 0
        self._cache = DynamicCache(config=target.model.config)
        odd = {type(layer).__name__ for layer in self._cache.layers if type(layer) is not DynamicLayer}
        if odd:
            raise VerifyError(
                f"the target keeps {', '.join(sorted(odd))}, of which drafts that were not accepted cannot be taken "
                "back here. Evaluate it in an engine"
            )

    @property
    def context(self) -> int:
        """The longest sequence that the target takes, in tokens."""
        return int(self.target.config.max_position_embeddings)

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer: what the target's generation_config says, else its config."""
        generation = self.target.model.generation_config
        end = None if generation is None else generation.eos_token_id
        end = self.target.config.eos_token_id if end is None else end
        return frozenset([end] if isinstance(end, int) else end or [])

    def begin(self, prompt: Ids) -> Pass:
        """Forget what was and read the prompt."""
        self._cache = DynamicCache(config=self.target.model.config)
        self._length, self.passes = 0, 0
        return self._run(prompt, None, None, last_only=True)

    def check(self, token: int, tree: Tree | None = None) -> Pass:
        """The token that was produced last, and drafts after it: row 0 is the token's, row 1 + i that of node i."""
        self.passes += 1
        if tree is None or not tree.tokens:
            return self._run((token,), None, None)
        if tree.is_chain:  # plain text, as far as attention knows
            return self._run((token, *tree.tokens), None, None)
        return self._run((token, *tree.tokens), _mask(tree, self._length, self.target.head.dtype), [0, *tree.depths()])

    def keep(self, path: Sequence[int]) -> None:
        """Of the last check keep the token and the nodes of this path, and forget the others."""
        kept = [0, *(1 + node for node in path)]
        for layer in self._cache.layers:
            layer.keys = _kept(layer.keys, self._length, kept)
            layer.values = _kept(layer.values, self._length, kept)
        self._length += len(kept)

    def _run(
        self, ids: Sequence[int], mask: torch.Tensor | None, depths: Sequence[int] | None, *, last_only: bool = False
    ) -> Pass:
        model, device = self.target.model, self.target.device
        offsets = torch.arange(len(ids)) if depths is None else torch.tensor(depths)
        with torch.inference_mode(), self.target.captured() as captured:
            output = model(
                input_ids=torch.tensor([list(ids)], device=device),
                attention_mask=None if mask is None else mask.to(device),
                position_ids=(self._length + offsets)[None].to(device),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
            )
        if last_only:
            self._length = len(ids)
        aux = torch.cat([captured[layer][0] for layer in self.target.layers], dim=-1)
        return Pass(output.logits[0].float(), aux.float())


def _mask(tree: Tree, past: int, dtype: torch.dtype) -> torch.Tensor:
    """What each row may attend, [1, 1, 1 + nodes, past + 1 + nodes]: all that was accepted, its own path, itself."""
    rows = 1 + len(tree.tokens)
    allowed = torch.zeros(rows, past + rows, dtype=torch.bool)
    allowed[:, : past + 1] = True
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            allowed[1 + node, past:] = allowed[1 + parent, past:]
        allowed[1 + node, past + 1 + node] = True
    additive = torch.zeros(
        1, 1, rows, past + rows, dtype=dtype
    )  # which every attention takes, as not every one does bools
    return additive.masked_fill(~allowed, torch.finfo(dtype).min)


def _kept(states: torch.Tensor, before: int, kept: Sequence[int]) -> torch.Tensor:
    """The first `before` positions of [1, heads, n, d] and so many of those after them."""
    if list(kept) == list(range(len(kept))):
        return states[..., : before + len(kept), :]
    chosen = torch.tensor(kept, device=states.device) + before
    return torch.cat([states[..., :before, :], states.index_select(-2, chosen)], dim=-2)
