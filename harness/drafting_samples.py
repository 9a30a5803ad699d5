"""Drafters to test decoding on: one with drawn weights for any target, and one that knows the answer and errs by plan.

What needs torch imports it when it is called.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.records import Ids

if TYPE_CHECKING:
    from pipeline.drafter.model import Drafter
    from pipeline.drafter.trees import Offers, Tree


def drawn_drafter(target: Any, draft_vocabulary: int, seed: int = 0) -> Drafter:  # noqa: ANN401 - a Target, of torch
    """An untrained drafter over the target, whose drawn norms and larger weights make its parts matter."""
    import torch

    from pipeline.drafter.baselines import untrained
    from pipeline.drafter.config import of_target
    from pipeline.drafter.draft_vocabulary import choose

    config = of_target(target.config, draft_vocab_size=draft_vocabulary, layers=target.layers)
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.rand(target.facts.vocab_size, generator=generator)
    drafter = untrained(config, choose(frequencies, draft_vocabulary), target.embedding, seed)
    for name, weight in sorted(drafter.named_parameters()):
        weight.normal_(mean=float("norm" in name), std=0.3, generator=generator)
    return drafter


class KnowingDrafting:
    """Offers the true next token at a drawn place among wrong ones, or leaves it out at a drawn rate.

    It counts what it is given, so that a decoder that hands over other tokens or states is found out.
    """

    def __init__(self, prompt: Ids, answer: Ids, vocabulary: int, *, errs: float = 0.3, seed: int = 0) -> None:
        self.whole = (*prompt, *answer)
        self.vocabulary = vocabulary
        self.errs = errs
        self.random = random.Random(seed)
        self.read: list[int] = [prompt[0]]

    def begin(self) -> None:
        self.read = self.read[:1]

    def follow(self, ids: Ids, aux: Any, number: int) -> Offers:  # noqa: ANN401 - a tensor
        if len(ids) != len(aux):
            raise ValueError(f"{len(ids)} tokens came with the states of {len(aux)}")
        self.read += ids
        return self._offers([len(self.read)], number)

    def expand(self, tree: Tree, nodes: Sequence[int], number: int) -> Offers:
        return self._offers([len(self.read) + len(tree.path(node)) for node in nodes], number)

    def _offers(self, places: Sequence[int], number: int) -> Offers:
        from pipeline.drafter.trees import Offers

        ids = [self._tokens(self.whole[place] if place < len(self.whole) else 0, number) for place in places]
        return Offers(ids, [[-0.5 * (1 + rank) for rank in range(number)] for _ in places])

    def _tokens(self, true: int, number: int) -> list[int]:
        wrong = self.random.sample([token for token in range(self.vocabulary) if token != true], number)
        if self.random.random() >= self.errs:
            wrong[self.random.randrange(number)] = true
        return wrong
