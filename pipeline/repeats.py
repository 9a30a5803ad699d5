"""Text that a stream may have sent twice: what else its deltas can stand for.

Guarantees: a legitimate repetition is never dropped, and a duplicate is never kept for one. Some servers send a chunk
again, the whole text at the end, or the text so far in every delta; nothing in the deltas tells that from a model that
repeats itself. So the other texts are named here, and a proof from text stands only if the counts rule them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

MANY = 64
"""Runs of equal deltas, above which the other texts are too many to try."""


def is_cumulative(texts: Sequence[str]) -> bool:
    """Whether every delta says again all that the one before it said, and some say more."""
    steps = list(pairwise(texts))
    return bool(steps) and all(after.startswith(before) for before, after in steps) and len(set(texts)) > 1


def without_repeats(texts: Sequence[str]) -> Iterator[str]:
    """The texts that these deltas stand for if some of them are repetitions of the server and not of the model."""
    runs = [(text, sum(1 for _ in run)) for text, run in groupby(texts)]
    for position, (_, length) in enumerate(runs):
        if length > 1:
            yield "".join(one * (many - (place == position)) for place, (one, many) in enumerate(runs))
    if len(runs) < len(texts):
        yield "".join(text for text, _ in runs)
    if len(texts) > 1 and texts[-1] == "".join(texts[:-1]):
        yield texts[-1]
    if is_cumulative(texts):
        yield texts[-1]


def repeated_runs(texts: Sequence[str]) -> int:
    """How many runs of two and more equal deltas there are."""
    return sum(1 for _, run in groupby(texts) if sum(1 for _ in run) > 1)
