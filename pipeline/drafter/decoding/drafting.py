"""Who drafts: EAGLE-3's drafter over its own key-value cache.

Guarantees: it sees what it sees when it serves. Row r holds token r + 1 and the target's states of token r, so
the first draft after a prompt comes from its last token's row, with the token that the target just produced; a drafted
token is read with the drafter's own state of its parent; and once a round is verified, what it drafted is forgotten and
the accepted tokens are read with the target's states instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from pipeline.drafter.decoding.trees import ROOT, Offers, Tree

if TYPE_CHECKING:
    from pipeline.drafter.model.model import Drafter
    from pipeline.records import Ids


class Drafting(Protocol):
    """One sequence being drafted for."""

    def begin(self) -> None:
        """Forget what was."""
        ...

    def follow(self, ids: Ids, aux: torch.Tensor, number: int) -> Offers:
        """Read verified tokens and offer what comes after the last: `aux` [n, 3h] of token r, `ids` [n] of r + 1."""
        ...

    def expand(self, tree: Tree, nodes: Sequence[int], number: int) -> Offers:
        """Offers for nodes of the tree, all of one depth, each offered by an earlier answer of this round."""
        ...


class DrafterDrafting:
    """The drafter on one sequence. Cache slots: the verified rows, then what this round has read of its tree."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.begin()

    def begin(self) -> None:
        self._cache = self.drafter.new_cache()
        self._rows = 0
        self._slots: dict[int, int] = {}
        self._states = torch.empty(0)

    def follow(self, ids: Ids, aux: torch.Tensor, number: int) -> Offers:
        self._cache.crop(self._rows)
        with torch.inference_mode():
            hidden = self.drafter.fuse(aux.to(self._device, self._dtype))[None]
            positions = torch.arange(self._rows, self._rows + len(ids), device=self._device)[None]
            tokens = torch.tensor([list(ids)], device=self._device)
            states = self.drafter.decode(tokens, hidden, positions, self._cache)
            self._rows += len(ids)
            self._slots, self._states = {ROOT: 0}, states[0, -1:]
            return self._offers(self._states, number)

    def expand(self, tree: Tree, nodes: Sequence[int], number: int) -> Offers:
        with torch.inference_mode():
            parents = [self._slots[tree.parents[node]] for node in nodes]
            tokens = torch.tensor([[tree.tokens[node] for node in nodes]], device=self._device)
            position = self._rows - 1 + len(tree.path(nodes[0]))
            positions = torch.full_like(tokens, position)
            read = len(self._states) - 1
            for place, node in enumerate(nodes):
                self._slots[node] = 1 + read + place
            mask = self._mask(tree, nodes, read).to(self._device)
            states = self.drafter.decode(tokens, self._states[None, parents], positions, self._cache, mask)[0]
            self._states = torch.cat([self._states, states])
            return self._offers(states, number)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.drafter.fc.weight.device
        return device

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.drafter.fc.weight.dtype
        return dtype

    def _mask(self, tree: Tree, nodes: Sequence[int], read: int) -> torch.Tensor:
        """What each node attends, bool [nodes, rows + read + nodes]: verified rows, its ancestors' slots, its own."""
        mask = torch.zeros(len(nodes), self._rows + read + len(nodes), dtype=torch.bool)
        mask[:, : self._rows] = True
        for place, node in enumerate(nodes):
            for one in tree.path(node):
                mask[place, self._rows + self._slots[one] - 1] = True
        return mask

    def _offers(self, states: torch.Tensor, number: int) -> Offers:
        scores = self.drafter.logits(states).float().log_softmax(-1)
        best = scores.topk(min(number, scores.shape[-1]), dim=-1)
        return Offers(self.drafter.to_target_ids(best.indices).tolist(), best.values.tolist())
