"""Degenerate answers: text that ends in one phrase said over and over.

Guarantees: looks at the end of the text alone, in time that is linear in what it looks at; a text is never changed or
refused here. A list of like lines is no loop: every character must repeat.
"""

from __future__ import annotations

TAIL = 2048
"""Characters looked at."""
LONGEST = 256
"""The longest phrase, in characters."""
LEAST = 240
"""A loop covers at least so many characters,"""
TIMES = 6
"""and says its phrase at least so many times."""
_LOOK = 16


def is_loop(text: str) -> bool:
    """Whether `text` ends in one phrase of at most 256 characters, said at least six times over 240 characters."""
    tail = text[-TAIL:][::-1]
    # What is said again is found again: most texts need no more than this look.
    if len(tail) < LEAST or tail.find(tail[:_LOOK], 1, LONGEST + _LOOK) < 0:
        return False
    return any(length >= LEAST and length >= TIMES * period for length, period in _periodic(tail) if period <= LONGEST)


def _periodic(text: str) -> list[tuple[int, int]]:
    """Length and smallest period of every prefix, by Knuth, Morris and Pratt's failure function (1977)."""
    borders = [0] * len(text)
    found = [(1, 1)]
    for position in range(1, len(text)):
        border = borders[position - 1]
        while border and text[position] != text[border]:
            border = borders[border - 1]
        border += text[position] == text[border]
        borders[position] = border
        found.append((position + 1, position + 1 - border))
    return found
