"""The breaker: it watches what comes of the rows and says when a run must stop before it burns money.

Guarantees: every answer that was paid for is judged, each dataset apart from the others; the first rows of a session
are canaries, judged before any more are sent; a trip names its kind, its numbers, the rows that show it, and what was
spent since the first of them. It only judges: stopping is the run's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from pipeline.money import usd_text
from pipeline.records import Reason

CANARIES = 32
"""Rows that are judged before the rest is sent."""
WINDOW = 60
"""Latest rows of a dataset that a rate is taken over."""
LEAST_CANARIES = 16
"""A dataset with fewer canaries than this is judged as if it had so many, the others good."""
NAMED = 5
COST_FACTOR = 3
"""An accepted row may cost this many times what it cost among the canaries."""


class Sign(StrEnum):
    """What can be wrong with an answer that was paid for; `cost` and `budget` are wrong with many together."""

    REFUSED = "refused"
    LENGTH_CUT = "length_cut"
    EMPTY = "empty"
    WRONG_PROVIDER = "wrong_provider"
    ERROR = "error"
    LOOP = "loop"
    COST = "cost"
    BUDGET = "budget"


LIMITS: Mapping[Sign, float] = MappingProxyType(
    {
        Sign.LENGTH_CUT: 0.5,
        Sign.EMPTY: 0.1,
        Sign.WRONG_PROVIDER: 0.0,
        Sign.ERROR: 0.25,
        Sign.LOOP: 0.1,
        Sign.REFUSED: 0.5,  # after those that say why
        Sign.COST: COST_FACTOR,
    }
)
"""The share of a window above which a run trips; for `cost` a multiple."""

SIGNS_OF: Mapping[Reason, Sign] = MappingProxyType(
    {
        Reason.EMPTY_ANSWER: Sign.EMPTY,
        Reason.WRONG_PROVIDER: Sign.WRONG_PROVIDER,
        Reason.WRONG_MODEL: Sign.WRONG_PROVIDER,
        Reason.UPSTREAM_ERROR: Sign.ERROR,
        Reason.STREAM_CUT: Sign.ERROR,
    }
)
"""What a refusal's reason is a sign of, beside `refused`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One row that was answered, or whose request is lost: its signs, and its cost in pico-dollars."""

    row: str
    dataset: str
    accepted: bool
    signs: AbstractSet[Sign] = frozenset()
    pico: int = 0


@dataclass(frozen=True, slots=True)
class Trip:
    """Why a run stops. `value` and `limit` are shares of `window` rows.

    For `cost` they are pico-dollars an accepted row, for `budget` pico-dollars in all.
    """

    sign: Sign
    dataset: str
    value: float
    limit: float
    window: int
    rows: tuple[str, ...]
    spent_pico: int
    canary: bool = False

    @property
    def sentence(self) -> str:
        """What tripped, with its numbers."""
        where = f" of {self.dataset}" if self.dataset else ""
        if self.sign is Sign.COST:
            per = f"${usd_text(round(self.value))} an accepted row{where}, limit ${usd_text(round(self.limit))}"
            return f"{self.sign}: {per}, over the last {self.window} rows"
        if self.sign is Sign.BUDGET:
            least, most = usd_text(round(self.value)), usd_text(round(self.limit))
            return f"{self.sign}: as the first {self.window} rows cost, the whole costs ${least} at least, of ${most}"
        of = f"{round(self.value * self.window)} of {'the first' if self.canary else 'the last'} {self.window} rows"
        return f"{self.sign}: {of}{where} ({self.value:.0%}, limit {self.limit:.0%})"


@dataclass(slots=True)
class _Recent:
    """The latest rows of one dataset, and how many of them bear each sign."""

    rows: deque[Seen] = field(default_factory=deque)
    counts: dict[Sign, int] = field(default_factory=dict)
    accepted: int = 0
    pico: int = 0
    baseline: float | None = None

    def add(self, seen: Seen, window: int) -> None:
        self.rows.append(seen)
        self._count(seen, 1)
        if len(self.rows) > window:
            self._count(self.rows.popleft(), -1)

    def _count(self, seen: Seen, by: int) -> None:
        self.accepted += by * seen.accepted
        self.pico += by * seen.pico
        for sign in seen.signs:
            self.counts[sign] = self.counts.get(sign, 0) + by


class Breaker:
    """Watches one run. `ignored` are the kinds of trip that the user has accepted."""

    def __init__(
        self, limits: Mapping[Sign, float] = LIMITS, *, ignored: AbstractSet[Sign] = frozenset(), window: int = WINDOW
    ) -> None:
        self._limits = {sign: limit for sign, limit in limits.items() if sign not in ignored}
        self._window = window
        self._recent: dict[str, _Recent] = {}
        self.trip: Trip | None = None

    def see(self, seen: Seen) -> Trip | None:
        """Judge one more row; the trip that it causes. The first trip of a run stands and is not repeated."""
        recent = self._recent.setdefault(seen.dataset, _Recent())
        recent.add(seen, self._window)
        found = next(self._trips(seen.dataset, recent, self._window, canary=False), None)
        return self._first(found)

    def judge_canaries(self) -> Trip | None:
        """Judge what there is as if it were all there will be, and take the cost of an accepted row from it."""
        for dataset, recent in self._recent.items():
            found = next(self._trips(dataset, recent, max(len(recent.rows), LEAST_CANARIES), canary=True), None)
            if found is not None:
                return self._first(found)
            recent.baseline = recent.pico / recent.accepted if recent.accepted else None
        return None

    def _first(self, found: Trip | None) -> Trip | None:
        if found is None or self.trip is not None:
            return None
        self.trip = found
        return found

    def _trips(self, dataset: str, recent: _Recent, window: int, *, canary: bool) -> Iterator[Trip]:
        """Trips of one dataset: a share is of the whole window, so that a single row cannot be half of all."""
        for sign, limit in self._limits.items():
            if sign is Sign.COST:
                yield from self._cost(dataset, recent, limit)
            elif (count := recent.counts.get(sign, 0)) and count / window > limit:
                rows, spent = _shown(recent, sign)
                yield Trip(sign, dataset, count / window, limit, window, rows, spent, canary)

    def _cost(self, dataset: str, recent: _Recent, factor: float) -> Iterator[Trip]:
        if recent.baseline is None or len(recent.rows) < self._window:
            return
        each, limit = recent.pico / max(recent.accepted, 1), recent.baseline * factor
        if each > limit:
            rows = tuple(seen.row for seen in recent.rows)[-NAMED:]
            yield Trip(Sign.COST, dataset, each, limit, len(recent.rows), rows, recent.pico)


def _shown(recent: _Recent, sign: Sign) -> tuple[tuple[str, ...], int]:
    """The first rows in the window that bear the sign, and what was spent from the first of them on."""
    bearing = [seen.row for seen in recent.rows if sign in seen.signs]
    first = next(position for position, seen in enumerate(recent.rows) if sign in seen.signs)
    return tuple(bearing[:NAMED]), sum(seen.pico for seen in list(recent.rows)[first:])


def limits_of(changes: Mapping[Sign, float]) -> dict[Sign, float]:
    """The limits with some of them changed."""
    return {**LIMITS, **changes}
