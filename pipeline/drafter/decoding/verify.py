"""The target's side of a round: passes over its cache.

Guarantees: plain and speculative decoding take their tokens from the same pass of the same cache, so that they differ
only in what is fed; the states that the drafter reads come from the hooks that make its training data. Refuses targets
whose cache cannot drop tokens that were not accepted (sliding windows, recurrent states).
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
    """A target that cannot verify, or a prompt without room."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Results of one pass over n tokens, both float32.

    `logits` [n, V] and `aux` [n, 3h]. After a prompt, n is 1 for the logits, which are of its last token.
    """

    logits: torch.Tensor
    aux: torch.Tensor


class Verifier:
    """One sequence on the target.

    Begin with its prompt, then check drafts and keep what was accepted.
    """

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
        """The tokens that end an answer.

        From the generation_config, else from the config.
        """
        generation = self.target.model.generation_config
        end = None if generation is None else generation.eos_token_id
        end = self.target.config.eos_token_id if end is None else end
        return frozenset([end] if isinstance(end, int) else end or [])

    def begin(self, prompt: Ids) -> Pass:
        """Start a new sequence: read the prompt."""
        self._cache = DynamicCache(config=self.target.model.config)
        self._length, self.passes = 0, 0
        return self._run(prompt, None, None, last_only=True)

    def check(self, token: int, tree: Tree | None = None) -> Pass:
        """Run the last produced token and drafts after it.

        Row 0 is the token's, row 1 + i that of node i.
        """
        self.passes += 1
        if tree is None or not tree.tokens:
            return self._run((token,), None, None)
        if tree.is_chain:  # causal attention is the right mask
            return self._run((token, *tree.tokens), None, None)
        return self._run((token, *tree.tokens), _mask(tree, self._length, self.target.head.dtype), [0, *tree.depths()])

    def keep(self, path: Sequence[int]) -> None:
        """Keep the checked token and this path, drop the rest."""
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
    """Return the attention mask of a tree.

    Shape [1, 1, rows, past + rows]. A row (the token, or a node) attends everything accepted, its own path and itself.
    """
    rows = 1 + len(tree.tokens)
    allowed = torch.zeros(rows, past + rows, dtype=torch.bool)
    allowed[:, : past + 1] = True
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            allowed[1 + node, past:] = allowed[1 + parent, past:]
        allowed[1 + node, past + 1 + node] = True
    # Additive, since not every attention implementation takes bools.
    additive = torch.zeros(1, 1, rows, past + rows, dtype=dtype)
    return additive.masked_fill(~allowed, torch.finfo(dtype).min)


def _kept(states: torch.Tensor, before: int, kept: Sequence[int]) -> torch.Tensor:
    """Keep the first `before` positions and some of those after.

    Of [1, heads, n, d]; `kept` counts from `before`.
    """
    if list(kept) == list(range(len(kept))):
        return states[..., : before + len(kept), :]
    chosen = torch.tensor(kept, device=states.device) + before
    return torch.cat([states[..., :before, :], states.index_select(-2, chosen)], dim=-2)
