"""The draft vocabulary: which of the target's tokens the drafter can name.

Guarantees: the most frequent tokens of the data and every control token of the format, in ascending order of id, so
that the mapping is the same whoever makes it. Formats as both engines read them: `d2t[i] = target id - i`, `t2d` says
of each target id whether it is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class VocabularyError(Exception):
    """A draft vocabulary that cannot be made as asked."""


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """`d2t` int64 [D] offsets, `t2d` bool [V]; `coverage` is the share of counted tokens that it can name."""

    d2t: torch.Tensor
    t2d: torch.Tensor
    coverage: float = 1.0

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of each draft id, int64 [D], ascending."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


def choose(frequencies: torch.Tensor, size: int, always: Iterable[int] = ()) -> DraftVocabulary:
    """The `size` most frequent tokens, `always` among them; a short list is filled with the lowest unused ids.

    `frequencies` [V] counts emitted tokens. Ties go to the lower id. Raises VocabularyError.
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
