"""Who drafts: EAGLE-3's drafter over its own cache, and baselines.

Guarantees: the drafter sees what it sees in serving. Row r holds token r + 1 and the target's states of token r, so the
first draft after a prompt comes from its last token's row, with the token that the target just produced. A drafted
token is read with the drafter's own state of its parent; after verification all drafted rows are dropped, and accepted
tokens are read with the target's states.

Baselines run in the same loop: the drafter before training, and a table of successors. The same seed gives the same
untrained drafter; the table counts emitted tokens of training rows alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from pipeline.drafter.decoding.trees import ROOT, Offers, Tree
from pipeline.drafter.model.config import DraftVocabulary
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.training.recipe import SEEDS, SEEDS_TOLD

if TYPE_CHECKING:
    from pipeline.drafter.model.config import DrafterConfig
    from pipeline.records import Ids


MOST_SUCCESSORS = 16
"""Most successors of a token that a table keeps."""


class Drafting(Protocol):
    """Drafts for one sequence."""

    def begin(self) -> None:
        """Start a new sequence."""
        ...

    def follow(self, ids: Ids, aux: torch.Tensor, number: int) -> Offers:
        """Read verified tokens and offer successors of the last.

        `aux` [n, 3h] are states of tokens r, `ids` [n] are tokens r + 1.
        """
        ...

    def expand(self, tree: Tree, nodes: Sequence[int], number: int) -> Offers:
        """Offer successors of tree nodes, all of one depth.

        An earlier call of this round offered each of them.
        """
        ...


class DrafterDrafting:
    """The drafter on one sequence.

    Cache slots: the verified rows, then what this round has read of its tree.
    """

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
            hidden = self.drafter.fuse(aux.to(self._device, self.drafter.fc.weight.dtype))[None]
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
            # Each node attends verified rows, its ancestors' slots and its own: bool [nodes, rows + read + nodes].
            mask = torch.zeros(len(nodes), self._rows + read + len(nodes), dtype=torch.bool)
            mask[:, : self._rows] = True
            for place, node in enumerate(nodes):
                mask[place, [self._rows + self._slots[one] - 1 for one in tree.path(node)]] = True
            states = self.drafter.decode(
                tokens, self._states[None, parents], positions, self._cache, mask.to(self._device)
            )[0]
            self._states = torch.cat([self._states, states])
            return self._offers(states, number)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.drafter.fc.weight.device
        return device

    def _offers(self, states: torch.Tensor, number: int) -> Offers:
        scores = self.drafter.logits(states).float().log_softmax(-1)
        best = scores.topk(min(number, scores.shape[-1]), dim=-1)
        return Offers(self.drafter.to_target_ids(best.indices).tolist(), best.values.tolist())


class SeedError(Exception):
    """A seed that torch does not accept."""


def untrained(config: DrafterConfig, vocabulary: DraftVocabulary, embedding: torch.Tensor, seed: int) -> Drafter:
    """Return a drafter with untrained weights.

    torch's own random state is left as it was. Raises SeedError.
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
    """Return an untrained copy of this drafter.

    Same sizes, vocabulary, embedding, device and dtype. Raises SeedError.
    """
    vocabulary = DraftVocabulary(drafter.d2t.cpu(), drafter.t2d.cpu())
    made = untrained(drafter.config, vocabulary, drafter.embedding, seed)
    made.to(drafter.fc.weight)
    return made


class TableDrafting:
    """Offers the most frequent successors in training rows.

    The context before the last token is ignored: the baseline that costs nothing.
    """

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
    """Return emitted successors of each token, with log-shares.

    `rows` are ids with their masks. Most frequent first; ties go to the lower id. The first emitted token counts as a
    successor of the token before it.
    """
    counts: dict[int, Counter[int]] = {}
    for ids, mask in rows:
        for at in range(1, len(ids)):
            if mask[at]:
                counts.setdefault(ids[at - 1], Counter())[ids[at]] += 1
    found: dict[int, list[tuple[int, float]]] = {}
    for token, followed in counts.items():
        best = sorted(followed.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_SUCCESSORS]
        numbers = torch.tensor([number for _, number in best], dtype=torch.float64)
        shares = numbers.div(followed.total()).log().tolist()
        found[token] = [(successor, share) for (successor, _), share in zip(best, shares, strict=True)]
    return found
