"""The emulated account: the bill, its limit, and each generation.

Guarantees: the total is the exact sum of all answers made, whether or not anyone was left to receive them.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from pipeline.records import Json

REMEMBERED = 200_000
"""Generations kept for `/generation`; older ones are forgotten first."""

MINUTE = 60.0


@dataclass(slots=True)
class Account:
    """The account of one key.

    `limit_usd` None: no limit. A generation is known `delay` seconds after its answer, 404 before.
    """

    limit_usd: Decimal | None = None
    delay: float = 1.0
    clock: Callable[[], float] = time.monotonic
    billed_usd: Decimal = Decimal(0)
    _generations: OrderedDict[str, tuple[float, dict[str, Json]]] = field(default_factory=OrderedDict)

    def bill(self, generation_id: str, cost: Decimal, record: dict[str, Json]) -> None:
        """Add one answer's cost, and keep its `/generation` record."""
        self.billed_usd += cost
        self._generations[generation_id] = (self.clock(), record)
        if len(self._generations) > REMEMBERED:
            self._generations.popitem(last=False)

    def generation(self, generation_id: str) -> dict[str, Json] | None:
        """Return the record, None while it is unknown."""
        known = self._generations.get(generation_id)
        return known[1] if known is not None and self.clock() - known[0] >= self.delay else None

    @property
    def spent(self) -> bool:
        """Return whether nothing is left to spend."""
        return self.limit_usd is not None and self.billed_usd >= self.limit_usd

    def key_entry(self) -> dict[str, Json]:
        """Return the `data` of `/key`."""
        used = float(self.billed_usd)
        left = None if self.limit_usd is None else float(max(self.limit_usd - self.billed_usd, Decimal(0)))
        return {
            "label": "sk-or-v1-emu...lat",
            "limit": None if self.limit_usd is None else float(self.limit_usd),
            "limit_reset": None,
            "limit_remaining": left,
            "include_byok_in_limit": False,
            "usage": used,
            "usage_daily": used,
            "usage_weekly": used,
            "usage_monthly": used,
            "byok_usage": 0,
            "is_free_tier": False,
            "is_management_key": False,
            "rate_limit": {"requests": -1, "interval": "10s", "note": "This field is deprecated and safe to ignore."},
        }


@dataclass(slots=True)
class RateLimit:
    """At most `per_minute` requests in any 60 seconds.

    None: no limit.
    """

    per_minute: int | None = None
    clock: Callable[[], float] = time.monotonic
    _times: deque[float] = field(default_factory=deque)

    def wait(self) -> float | None:
        """Count one request, or say how long to wait.

        In seconds; a request that must wait is not counted.
        """
        if self.per_minute is None:
            return None
        now = self.clock()
        while self._times and now - self._times[0] >= MINUTE:
            self._times.popleft()
        if len(self._times) >= self.per_minute:
            return MINUTE - (now - self._times[0]) if self._times else MINUTE
        self._times.append(now)
        return None
