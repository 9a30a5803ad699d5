"""An upper bound on a binomial rate."""

from __future__ import annotations

from math import comb


def clopper_pearson_upper(wrong: int, n: int, confidence: float = 0.95) -> float:
    """Return Clopper and Pearson's one-sided upper bound (1934).

    `wrong` of `n` cases were wrong. The bound is 1.0 where all were, or where there were none.

    >>> round(clopper_pearson_upper(0, 100), 4)
    0.0295
    """
    if wrong >= n:
        return 1.0
    low, high = wrong / n, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        at_most_wrong = sum(comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(wrong + 1))
        if at_most_wrong > 1 - confidence:
            low = rate
        else:
            high = rate
    return high
