"""Whether outputs say something: acceptance is high, and worth nothing, where a model repeats itself.

Guarantees: a loop is a tail that repeats one stretch of tokens at least three times over, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.records import Ids

GRAM = 4
LONGEST_PERIOD = 64
SHORTEST_LOOP = 24
"""In tokens: a list of a few equal lines is no loop."""
TIMES = 3


def distinct(outputs: Iterable[Ids]) -> float | None:
    """Different runs of four tokens among all of them, over all outputs together; None where none is that long."""
    grams = [tuple(ids[at : at + GRAM]) for ids in outputs for at in range(len(ids) - GRAM + 1)]
    return len(set(grams)) / len(grams) if grams else None


def looped(ids: Sequence[int]) -> int:
    """How many tokens at the end of the output are one stretch repeated; 0 where it ends otherwise."""
    longest = 0
    for period in range(1, min(LONGEST_PERIOD, len(ids) // TIMES) + 1):
        length = period
        while length < len(ids) and ids[-1 - length] == ids[-1 - length + period]:
            length += 1
        if length >= max(SHORTEST_LOOP, TIMES * period):
            longest = max(longest, length)
    return longest
