"""What a run will cost: a range from measured answers, before it begins and again once it has begun.

Guarantees: a range is given only from answers that were paid for (or emulated) on the same route and model; without
enough of them the worst case is named as such. Once a hundredth of the rows is asked, a run that would not fit its
budget even at the low end of the range is said to, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.base.money import usd_text
from pipeline.generation.breaker import Sign, Trip

SHARE = 0.01
LEAST = 50
ENOUGH = 20
"""Answers that a range before the run is given from."""
Z = 1.96


@dataclass(frozen=True, slots=True)
class Range:
    """Pico-dollars from `low` to `high`, and how many answers that is from."""

    low: int
    high: int
    n: int

    @property
    def text(self) -> str:
        return f"${usd_text(self.low)} to ${usd_text(self.high)}, from {self.n} measured answers"


@dataclass(slots=True)
class Costs:
    """Costs of single answers, summed as they come (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, pico: int) -> None:
        self.n += 1
        step = pico - self.mean
        self.mean += step / self.n
        self.squares += step * (pico - self.mean)

    def range_for(self, rows: int) -> Range:
        """What `rows` more answers cost at 95 %: the mean is uncertain by its sample, and each answer by itself."""
        spread = math.sqrt(self.squares / max(self.n - 1, 1)) * math.sqrt(rows + rows * rows / max(self.n, 1))
        middle = self.mean * rows
        return Range(max(round(middle - Z * spread), 0), round(middle + Z * spread), self.n)


def forecast(measured: Iterable[int], rows: int) -> Range | None:
    """The range for `rows` answers like those `measured` (pico-dollars each); None where too few were."""
    costs = Costs()
    for pico in measured:
        costs.add(pico)
    return costs.range_for(rows) if costs.n >= ENOUGH else None


class Forecast:
    """Watches what one session's answers cost. `rows` are those without a row yet, `budget` what it may spend."""

    def __init__(self, rows: int, budget: int, *, ignored: bool = False) -> None:
        self._left = rows
        self._budget = budget
        self._costs = Costs()
        self._due = max(LEAST, math.ceil(rows * SHARE))
        self._ignored = ignored

    def skip(self) -> None:
        """A row that was paid for before, or was never asked."""
        self._left -= 1

    def see(self, pico: int) -> Trip | None:
        """One more settled answer; the trip, where the estimate is due and the budget would not hold for the rest."""
        self._costs.add(pico)
        self._left -= 1
        self._budget -= pico
        if self._costs.n != self._due or self._ignored or self._left <= 0:
            return None
        found = self._costs.range_for(self._left)
        if found.low <= self._budget:
            return None
        spent = round(self._costs.mean * self._costs.n)
        return Trip(Sign.BUDGET, "", found.low, self._budget, self._costs.n, (), spent)
