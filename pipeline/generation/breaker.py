"""Stop a run before it burns money on bad answers.

Guarantees: every answer that this session paid for is judged by what came, accepted or not, with its dataset and with
all of them together. Rows that were never asked are not judged. The first are canaries, judged before any more are
sent. A trip names its kind, its numbers, the rows that show it, and what was spent since the first of them. This module
only judges; stopping is the run's.

`Breaker` judges rows by their `Sign`s; `row_signs_of` finds those; `is_loop` finds degenerate text.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from types import MappingProxyType

from pipeline.base.money import usd_text
from pipeline.generation.outcome import Outcome, Status
from pipeline.records import Completion, Reason, Refusal, TokenRow

CANARIES = 32
"""Rows that are judged before the rest is sent."""
WINDOW = 240
"""Rows that a share is taken over; over fewer, an ordinary run of 83,000 rows is sometimes unlucky."""
QUICK, QUICK_SHARE = 30, 0.9
"""A second, short window, and the share of it that trips before the long window is full."""
COST_WINDOW, COST_LEAST = 120, 60
"""Latest settled rows that the cost of an accepted row is taken over, and the fewest that will do."""
LEAST_CANARIES = 16
"""A dataset with fewer canaries is judged as if it had this many, the others good."""
NAMED = 5
COST_FACTOR = 3
"""An accepted row may cost this many times what the first 32 did."""


class Sign(StrEnum):
    """What can be wrong with a paid answer.

    `cost` and `budget` are wrong with many answers together.
    """

    REFUSED = "refused"
    LENGTH_CUT = "length_cut"
    EMPTY = "empty"
    WRONG_PROVIDER = "wrong_provider"
    ERROR = "error"
    LOOP = "loop"
    OVERCHARGED = "overcharged"
    COST = "cost"
    BUDGET = "budget"


LIMITS: Mapping[Sign, float] = MappingProxyType(
    {
        Sign.LENGTH_CUT: 0.5,
        Sign.EMPTY: 0.1,
        Sign.WRONG_PROVIDER: 0.0,
        Sign.OVERCHARGED: 0.0,  # more than the listed price allows in the worst case
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
class RowSigns:
    """One row that was answered or lost: signs and cost.

    `pico` is its cost in pico-dollars, or its worst case where nothing is settled and `cost` is None.
    """

    row: str
    dataset: str
    accepted: bool
    signs: AbstractSet[Sign] = frozenset()
    pico: int = 0
    cost: int | None = None


@dataclass(frozen=True, slots=True)
class Trip:
    """Why a run stops.

    `value` and `limit` are shares of `window` rows. For `cost` they are pico-dollars an accepted row, for `budget`
    pico-dollars in all.
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
        """The reason, with its numbers."""
        where = f" of {self.dataset}" if self.dataset else ""
        if self.sign is Sign.COST:
            per = f"${usd_text(round(self.value))} an accepted row{where}, limit ${usd_text(round(self.limit))}"
            return f"{self.sign}: {per}, over the last {self.window} rows"
        if self.sign is Sign.BUDGET:
            least, most = usd_text(round(self.value)), usd_text(round(self.limit))
            return f"{self.sign}: as the first {self.window} rows cost, the rest costs ${least} at least, of ${most}"
        of = f"{round(self.value * self.window)} of {'the first' if self.canary else 'the last'} {self.window} rows"
        return f"{self.sign}: {of}{where} ({self.value:.0%}, limit {self.limit:.0%})"


class _Window:
    """The latest `size` rows, and counts of their signs."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: deque[RowSigns] = deque()
        self.counts: Counter[Sign] = Counter()

    def add(self, row: RowSigns) -> None:
        self.rows.append(row)
        self.counts.update(row.signs)
        if len(self.rows) > self.size:
            self.counts.subtract(self.rows.popleft().signs)


class _Recent:
    """The latest rows of one dataset, or of all.

    `baseline` is the cost of an accepted row among the first.
    """

    def __init__(self) -> None:
        self.slow, self.quick, self.settled = _Window(WINDOW), _Window(QUICK), _Window(COST_WINDOW)
        self.baseline: float | None = None
        self._first: list[RowSigns] = []

    def add(self, row: RowSigns) -> None:
        self.slow.add(row)
        self.quick.add(row)
        if row.cost is not None:
            self.settled.add(row)
            if self.baseline is None:
                self._first.append(row)
                if sum(first.accepted for first in self._first) == CANARIES:
                    self.baseline = _cost_each(self._first)


class Breaker:
    """The judge of one session.

    `ignored` are the kinds of trip that the user accepts.
    """

    def __init__(self, limits: Mapping[Sign, float] = LIMITS, *, ignored: AbstractSet[Sign] = frozenset()) -> None:
        self._limits = {sign: limit for sign, limit in limits.items() if sign not in ignored}
        self._recent: dict[str, _Recent] = {}
        self._all = _Recent()
        self.trip: Trip | None = None

    def see(self, row: RowSigns) -> Trip | None:
        """Judge one more row; return the trip it causes.

        The first trip of a run stands and is not repeated.
        """
        recent = self._recent.setdefault(row.dataset, _Recent())
        recent.add(row)
        self._all.add(row)
        return self._first(chain(self._trips(row.dataset, recent), self._trips("", self._all)))

    def judge_canaries(self) -> Trip | None:
        """Judge the rows so far as if no more came."""
        return self._first(
            trip
            for dataset, recent in (*self._recent.items(), ("", self._all))
            for trip in self._shares(dataset, recent.slow, max(len(recent.slow.rows), LEAST_CANARIES), canary=True)
        )

    def _first(self, found: Iterator[Trip]) -> Trip | None:
        if self.trip is not None or (trip := next(found, None)) is None:
            return None
        self.trip = trip
        return trip

    def _trips(self, dataset: str, recent: _Recent) -> Iterator[Trip]:
        yield from self._shares(dataset, recent.slow, WINDOW)
        yield from self._shares(dataset, recent.quick, QUICK, least=QUICK_SHARE)
        rows, factor = recent.settled.rows, self._limits.get(Sign.COST)
        if factor is None or recent.baseline is None or len(rows) < COST_LEAST:
            return
        each, limit = _cost_each(rows), recent.baseline * factor
        if each > limit:
            named = tuple(row.row for row in rows)[-NAMED:]
            yield Trip(Sign.COST, dataset, each, limit, len(rows), named, sum(row.pico for row in rows))

    def _shares(
        self, dataset: str, recent: _Window, window: int, *, least: float = 0.0, canary: bool = False
    ) -> Iterator[Trip]:
        """Yield a trip for each sign above its limit.

        A share is of the whole window, so that a single row cannot be half of all.
        """
        for sign, limit in self._limits.items():
            share, most = recent.counts[sign] / window, max(limit, least)
            if sign is not Sign.COST and share > most:
                bearing = [position for position, row in enumerate(recent.rows) if sign in row.signs]
                named = tuple(recent.rows[position].row for position in bearing[:NAMED])
                spent = sum(row.pico for row in list(recent.rows)[bearing[0] :])
                yield Trip(sign, dataset, share, most, window, named, spent, canary)


def _cost_each(rows: Collection[RowSigns]) -> float:
    """Return pico-dollars an accepted row, refused ones included."""
    return sum(row.cost or 0 for row in rows) / max(sum(row.accepted for row in rows), 1)


def limits_of(changes: Mapping[Sign, float]) -> dict[Sign, float]:
    """Return the limits with some of them changed."""
    return {**LIMITS, **changes}


CUT = frozenset({"length", "max_tokens", "max_output_tokens"})


def row_signs_of(outcome: Outcome, row: TokenRow | Refusal | None) -> RowSigns | None:
    """Return what the breaker judges of a row.

    None for a row that was turned away free of charge, or not asked in this session: an answer found in the ledger says
    nothing about the provider's present state, and a run that was killed would pause for ever on what the kill had
    left.
    """
    prompt = outcome.row.prompt
    if outcome.status is Status.AGAIN or outcome.request is None or not outcome.sent:
        return None
    signs = frozenset(_signs(outcome, row))
    return RowSigns(prompt.id, prompt.dataset, isinstance(row, TokenRow), signs, outcome.pico, outcome.cost)


def _signs(outcome: Outcome, row: TokenRow | Refusal | None) -> Iterator[Sign]:
    if outcome.cost is not None and outcome.cost > outcome.worst_pico:
        yield Sign.OVERCHARGED
    if outcome.status is Status.UNKNOWN:
        yield from (Sign.ERROR, Sign.REFUSED)
    if isinstance(row, Refusal) and row.reason is Reason.LOOPING:
        yield Sign.LOOP  # proven, so no sign of a broken route, and a run that goes on over loops goes on
    elif isinstance(row, Refusal):
        yield Sign.REFUSED
        if (sign := SIGNS_OF.get(row.reason)) is not None:
            yield sign
    if isinstance(answer := outcome.answer, Completion):
        if answer.finish_reason == "length" or (answer.native_finish_reason or "").lower() in CUT:
            yield Sign.LENGTH_CUT
        if any(is_loop(text) for text in (answer.reasoning, answer.content) if text):
            yield Sign.LOOP
        if not (answer.reasoning or answer.content or answer.tool_calls):
            yield Sign.EMPTY


def trip_message(trip: Trip, *, emulated: bool) -> str:
    """Return a trip's reason, rows and cost, for the user."""
    shown = f". Rows that show it: {', '.join(trip.rows)}" if trip.rows else ""
    spent = f"${usd_text(trip.spent_pico)}{' (emulated)' * emulated}"
    return f"the breaker stopped this run: {trip.sentence}{shown}. Spent since the first: {spent}"


TAIL = 2048
"""Characters looked at."""
LONGEST = 256
"""The longest phrase, in characters."""
LEAST = 240
"""The fewest characters that a loop covers."""
TIMES = 6
"""The fewest times that a loop says its phrase."""
_LOOK = 16


def is_loop(text: str) -> bool:
    """Whether `text` ends in one phrase, over and over.

    The phrase has at most 256 characters and stands at least six times, over 240 characters; every character must
    repeat, so a list of like lines is no loop. Only the end of the text is looked at, in linear time.
    """
    tail = text[-TAIL:][::-1]
    # What is said again is found again: most texts need no more than this look.
    if len(tail) < LEAST or tail.find(tail[:_LOOK], 1, LONGEST + _LOOK) < 0:
        return False
    return any(length >= LEAST and length >= TIMES * period for length, period in _periodic(tail) if period <= LONGEST)


def _periodic(text: str) -> list[tuple[int, int]]:
    """Return length and smallest period of every prefix.

    By Knuth, Morris and Pratt's failure function (1977).
    """
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
