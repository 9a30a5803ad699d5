r"""A text as it reads once escapes are undone, each character knowing where in the original it stands.

Guarantees: undoing is exact about places, so that what is found in a guise can be replaced in the original. JSON
inside a JSON string has its quotes as `\"`, inside a string in that as `\\\"`, and so on to any depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

DEEPEST: Final = 8
"""Levels of strings in strings. Each doubles the backslashes, so that the eighth has 255 before every quote."""

_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CODED: Final = re.compile(r"(?<!\\)\\u00(?!22|5c)([2-7][0-9a-f])", re.IGNORECASE)
_PERCENT: Final = re.compile(r"%([2-7][0-9a-f])", re.IGNORECASE)
_STRING: Final = re.compile(r'\\(?:u00([0-7][0-9a-f])|(["\\/bfnrt]))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Guise:
    """`text[i]` stands for the original from `places[i]` to `places[i + 1]`; None where each stands for itself."""

    text: str
    places: tuple[int, ...] | None = None

    def place(self, index: int) -> int:
        """Where in the original the character at `index` begins."""
        return index if self.places is None else self.places[index]

    def undone(self, rule: re.Pattern[str], read: Callable[[re.Match[str]], str]) -> Guise:
        """This guise with each match of `rule` as the one character that it stands for."""
        if rule.search(self.text) is None:
            return self
        parts: list[str] = []
        places: list[int] = []
        position = 0
        for match in rule.finditer(self.text):
            parts += (self.text[position : match.start()], read(match))
            places += map(self.place, range(position, match.start() + 1))
            position = match.end()
        parts.append(self.text[position:])
        places += map(self.place, range(position, len(self.text) + 1))
        return Guise("".join(parts), tuple(places))


def levels(text: str) -> Iterator[Guise]:
    """The text, then as it reads within its JSON strings, within the strings of those, and so on."""
    guise = Guise(text)
    for _ in range(DEEPEST):
        yield guise
        deeper = guise.undone(_STRING, _string)
        if deeper is guise:
            return
        guise = deeper


def plain(guise: Guise) -> Guise:
    r"""The same with `\u005f` read as `_`; a coded quote or backslash stays, for it is no structure at this level."""
    return guise.undone(_CODED, lambda match: _code(match[1]))


def unquoted(guise: Guise) -> Guise:
    """The same with `%2D` read as `-`."""
    return guise.undone(_PERCENT, lambda match: _code(match[1]))


def _string(match: re.Match[str]) -> str:
    return _code(match[1]) if match[1] else _LETTERS.get(match[2], match[2])


def _code(digits: str) -> str:
    return chr(int(digits, 16))
