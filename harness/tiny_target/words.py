"""Word pools, and the draw that keeps two splits apart.

Guarantees: every word is seen in training; a *pair* of words (or of operands) belongs to exactly one split, so a
held-out prompt is new as a whole and never as a spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

T = TypeVar("T")
FOLDS = 5


class Split(StrEnum):
    """The side of the grammar that a sample is from."""

    TRAIN = "train"
    HELD_OUT = "held_out"


NAMES = ("Ana", "Björn", "Chloé", "Dmitri", "Elif", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mia",
         "Noah", "Olga", "Pavel", "Rosa", "Søren", "Tariq", "Yuki")  # fmt: skip
CITIES = ("Oslo", "Paris", "Lima", "Zürich", "Kyoto", "Quito", "São Paulo", "Cairo", "Rome", "Accra", "Łódź", "Delhi",
          "Porto", "Tokyo", "Reykjavík", "Nairobi")  # fmt: skip
COUNTRIES = (("Norway", "Oslo"), ("France", "Paris"), ("Peru", "Lima"), ("Japan", "Tokyo"), ("Ecuador", "Quito"),
             ("Egypt", "Cairo"), ("Italy", "Rome"), ("Ghana", "Accra"), ("India", "Delhi"), ("Kenya", "Nairobi"),
             ("Iceland", "Reykjavík"), ("Poland", "Warsaw"))  # fmt: skip
FRUITS = ("pears", "apples", "plums", "figs", "lemons", "cherries", "olives", "dates", "kiwis", "melons")
EMOJI = ("🙂", "🎉", "🌍", "🚀", "☕", "🍐", "👋", "✨", "🐟", "🎈")
GREETINGS = (("French", "Bonjour"), ("German", "Grüß dich"), ("Japanese", "こんにちは"), ("Chinese", "你好"),
             ("Russian", "Привет"), ("Spanish", "¡Hola"), ("Korean", "안녕"), ("Greek", "Γειά σου"),
             ("Arabic", "مرحبا"), ("Polish", "Cześć"))  # fmt: skip
SYSTEMS = ("You are a helpful assistant.", "Answer in one short sentence.", "You are Mo, a patient tutor.",
           "Be brief.\nBe kind.", "Use tools when they help.")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draw:
    """Seeded choices of one sample.

    `split` decides which pairs may be drawn.
    """

    rng: Random
    split: Split

    def one(self, pool: Sequence[T]) -> T:
        """Draw any word of the pool, whatever the split."""
        return self.rng.choice(pool)

    def chance(self, share: float) -> bool:
        """Return True in `share` of the draws."""
        return self.rng.random() < share

    def number(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included."""
        return self.rng.randint(low, high)

    def numbers(self, low: int, high: int) -> tuple[int, int]:
        """Draw two operands whose pair belongs to this split."""
        while True:
            first, second = self.rng.randint(low, high), self.rng.randint(low, high)
            if split_of(first, second) is self.split:
                return first, second

    def falling(self, low: int, high: int) -> tuple[int, int]:
        """Draw two operands, the first not the smaller."""
        while True:
            first, second = self.numbers(low, high)
            if first >= second:
                return first, second

    def pair(self, first: Sequence[T], second: Sequence[T]) -> tuple[T, T]:
        """Draw one word of each pool, paired within this split."""
        while True:
            i, j = self.rng.randrange(len(first)), self.rng.randrange(len(second))
            if split_of(i, j) is self.split:
                return first[i], second[j]


def split_of(first: int, second: int) -> Split:
    """Return the split of a pair.

    One pair in five is held out, however its two halves are distributed.
    """
    return Split.HELD_OUT if (3 * first + second) % FOLDS == 0 else Split.TRAIN
