"""Bounds on a rate that was seen k times in n."""

from __future__ import annotations

from math import comb


def clopper_pearson_upper(wrong: int, n: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided upper bound (1934) of a binomial rate; 1.0 where nothing was seen."""
    if wrong >= n:
        return 1.0
    low, high = wrong / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(wrong, n, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(wrong: int, n: int, rate: float) -> float:
    """P(X <= wrong) for X ~ Binomial(n, rate)."""
    return sum(comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(wrong + 1))
