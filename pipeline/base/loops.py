"""Ids that end in a loop of one stretch.

Found is an exact repetition at the end of an output or of one of its parts, at any offset into the stretch. Not found
are loops that change as they go ("1. the 2. the"), loops that the text left again in the middle of a part, and
stretches of more than `LONGEST_PERIOD` tokens. The cost does not grow with the row: only its last tokens are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LONGEST_PERIOD = 512
SHORTEST_LOOP = 256
"""In tokens. Rules of a table, refrains and rows of zeros are shorter, and a collapse goes on to the limit."""
TIMES = 5


def loop_period(ids: Sequence[int]) -> int | None:
    """Return the period of the final loop, or None.

    A loop is said five times or more and covers 256 tokens or more.

    >>> loop_period([5, 6] + [7, 8, 9] * 100)
    3
    """
    for period in range(1, min(LONGEST_PERIOD, len(ids) // TIMES) + 1):
        length = max(SHORTEST_LOOP, TIMES * period)
        if length > len(ids):
            return None
        # Two ids that differ settle most periods without a copy.
        if ids[-1] == ids[-1 - period] and ids[len(ids) - length + period :] == ids[len(ids) - length : -period]:
            return period
    return None


def is_looping(ids: Sequence[int], parts: Iterable[tuple[int, int]], *, ended: bool) -> bool:
    """Whether an output or a part ends in a loop.

    The parts are ranges of `ids`; where the output `ended`, its last id is the end token and not looked at.
    """
    whole = (0, len(ids) - ended)
    return any(loop_period(ids[start:stop]) is not None for start, stop in (whole, *parts))
