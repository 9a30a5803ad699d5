"""The breaker over runs as long as a dataset: bad luck alone does not stop them."""

from __future__ import annotations

import random

import pytest

from pipeline.generation.breaker import Breaker, RowSigns, Sign

ROWS = 83_000


@pytest.mark.parametrize(
    "share, sign", [(0.35, Sign.REFUSED), (0.35, Sign.LENGTH_CUT), (0.03, Sign.LOOP), (0.1, Sign.ERROR)]
)
def test_an_ordinary_long_run_is_not_unlucky(share: float, sign: Sign) -> None:
    draw = random.Random(7)
    breaker = Breaker(ignored={Sign.COST})
    bad = (draw.random() < share for _ in range(ROWS))
    rows = (
        RowSigns(f"r{n}", "", not (is_bad and sign is Sign.REFUSED), frozenset([sign] if is_bad else ()), 10, 10)
        for n, is_bad in enumerate(bad)
    )

    assert not any(breaker.see(row) for row in rows)
