"""What a drafter is compared with, on the same loop: itself before training, and a table of which token follows which.

Guarantees: the same seed makes the same untrained drafter; the table counts emitted tokens of training rows alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from pipeline.drafter.decoding.trees import Offers, Tree
from pipeline.drafter.model.draft_vocabulary import DraftVocabulary
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.training.recipe import SEEDS, SEEDS_TOLD

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig
    from pipeline.records import Ids

MOST_SUCCESSORS = 16
"""Of each token, what a table remembers."""


class SeedError(Exception):
    """A seed that torch does not take."""


def untrained(config: DrafterConfig, vocabulary: DraftVocabulary, embedding: torch.Tensor, seed: int) -> Drafter:
    """A drafter with weights as they are before training; torch's own state of chance is left as it was.

    Raises SeedError.
    """
    if seed not in SEEDS:
        raise SeedError(f"{seed} is not {SEEDS_TOLD}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drafter = Drafter(config, vocabulary)
    drafter.attach(embedding)
    drafter.eval().requires_grad_(requires_grad=False)
    return drafter


def untrained_like(drafter: Drafter, seed: int) -> Drafter:
    """The same sizes, vocabulary, embedding, device and type as this one, untrained. Raises SeedError."""
    vocabulary = DraftVocabulary(drafter.d2t.cpu(), drafter.t2d.cpu())
    made = untrained(drafter.config, vocabulary, drafter.embedding, seed)
    made.to(drafter.fc.weight)
    return made


class TableDrafting:
    """What followed a token most often in training rows, whatever stood before it: the baseline that costs nothing."""

    def __init__(self, successors: Mapping[int, Sequence[tuple[int, float]]]) -> None:
        self.successors = successors

    def begin(self) -> None:
        return

    def follow(self, ids: Ids, aux: torch.Tensor, number: int) -> Offers:  # noqa: ARG002 - it reads no state
        return self._offers([ids[-1]], number)

    def expand(self, tree: Tree, nodes: Sequence[int], number: int) -> Offers:
        return self._offers([tree.tokens[node] for node in nodes], number)

    def _offers(self, tokens: Sequence[int], number: int) -> Offers:
        found = [self.successors.get(token, ())[:number] for token in tokens]
        return Offers([[token for token, _ in own] for own in found], [[score for _, score in own] for own in found])


def successors_in(rows: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> dict[int, list[tuple[int, float]]]:
    """Of each token in these rows (ids and what was emitted), the emitted tokens that followed it, with log-shares.

    Most frequent first, of equals the lower id. The token before the first emitted one counts as followed by it.
    """
    counts: dict[int, Counter[int]] = {}
    for ids, mask in rows:
        for at in range(1, len(ids)):
            if mask[at]:
                counts.setdefault(ids[at - 1], Counter())[ids[at]] += 1
    return {token: _shares(followed) for token, followed in counts.items()}


def _shares(followed: Counter[int]) -> list[tuple[int, float]]:
    best = sorted(followed.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_SUCCESSORS]
    shares = torch.tensor([number for _, number in best], dtype=torch.float64).div(followed.total()).log().tolist()
    return [(token, share) for (token, _), share in zip(best, shares, strict=True)]
