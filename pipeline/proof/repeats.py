"""Text that a stream may have sent twice: what else its deltas can stand for.

Guarantees: a legitimate repetition is never dropped, and a duplicate is never kept for one. Some servers send a chunk
again, the whole text at the end, or the text so far in every delta; nothing in the deltas tells that from a model that
repeats itself. So the other texts are named here, and a proof from text stands only if the counts rule them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, count, islice, pairwise
from operator import eq

MANY = 64
"""Runs of equal deltas, above which the other texts are too many to try."""


def is_cumulative(texts: Sequence[str]) -> bool:
    """Whether every delta says again all that the one before it said, and some say more."""
    return len(texts) > 1 and all(after.startswith(before) for before, after in pairwise(texts)) and len(set(texts)) > 1


def without_repeats(texts: Sequence[str]) -> Iterator[str]:
    """The texts that these deltas stand for if some of them are repetitions of the server and not of the model."""
    if again := _said_again(texts):
        whole, ends = "".join(texts), list(accumulate(map(len, texts)))
        for one in _first_of_each_run(again):
            yield whole[: ends[one] - len(texts[one])] + whole[ends[one] :]
        left_out = set(again)
        yield "".join(text for position, text in enumerate(texts) if position not in left_out)
    if len(texts) > 1 and texts[-1] == "".join(texts[:-1]):
        yield texts[-1]
    if is_cumulative(texts):
        yield texts[-1]


def repeated_runs(texts: Sequence[str]) -> int:
    """How many runs of two and more equal deltas there are."""
    return len(_first_of_each_run(_said_again(texts)))


def _said_again(texts: Sequence[str]) -> list[int]:
    """The deltas that are equal to the one after them."""
    return list(compress(count(), map(eq, texts, islice(texts, 1, None))))


def _first_of_each_run(positions: Sequence[int]) -> list[int]:
    return [position for before, position in pairwise((-2, *positions)) if position != before + 1]
