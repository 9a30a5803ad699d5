"""Caps on money, tokens and requests.

Guarantees: each request is held against the caps before it is sent. At no moment do the reservations and what was used
exceed a cap, under any number of tasks or threads. A reservation is taken from all caps or from none.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pipeline.base.money import usd_text
from pipeline.generation.day_spend import DaySpend


@dataclass(frozen=True, slots=True)
class Amount:
    """A use of money, tokens and requests.

    Money is in pico-dollars.
    """

    pico: int = 0
    tokens: int = 0
    requests: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.pico + other.pico, self.tokens + other.tokens, self.requests + other.requests)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.pico - other.pico, self.tokens - other.tokens, self.requests - other.requests)


@dataclass(frozen=True, slots=True)
class Cap:
    """One limit, of the run, the day or the key.

    None leaves a measure free. `used` is what was used before this run. `mend` is what the user may do once it is
    reached.
    """

    scope: str
    pico: int | None = None
    tokens: int | None = None
    requests: int | None = None
    used: Amount = Amount()
    mend: str = "raise the cap to go on"

    def excess(self, held: Amount) -> str | None:
        """Return the measure that `held` would exceed, in words.

        `held` comes on top of `used`. None where it fits.
        """
        total = self.used + held
        if self.pico is not None and total.pico > self.pico:
            return f"${usd_text(total.pico)} of ${usd_text(self.pico)} a {self.scope}"
        if self.tokens is not None and total.tokens > self.tokens:
            return f"{total.tokens} of {self.tokens} tokens a {self.scope}"
        if self.requests is not None and total.requests > self.requests:
            return f"{total.requests} of {self.requests} requests a {self.scope}"
        return None


class BudgetError(Exception):
    """The next request does not fit under a cap.

    Nothing was reserved. `in_flight`: it may fit once others settle.
    """

    def __init__(self, message: str, *, in_flight: bool) -> None:
        super().__init__(message)
        self.in_flight = in_flight


class Budget:
    """The caps of one run, and what it holds."""

    def __init__(self, *caps: Cap, day: DaySpend | None = None) -> None:
        self._caps, self._day = caps, day
        self._held = Amount()
        self._reserved = Amount()
        self._lock = threading.Lock()

    def reserve(self, worst: Amount) -> None:
        """Hold the worst case of one request.

        Raises BudgetError, holding nothing, where any cap would be exceeded.
        """
        with self._lock:
            wanted = self._held + worst
            excess = next((f"{words}: {cap.mend}" for cap in self._caps if (words := cap.excess(wanted))), None)
            if excess is None and self._day is not None:
                excess = self._day.hold(wanted.pico, (self._reserved + worst).pico)
            if excess:
                message = f"the next request could bring the spend to {excess}"
                raise BudgetError(message, in_flight=self._reserved != Amount())
            self._held = wanted
            self._reserved += worst

    def settle(self, worst: Amount, actual: Amount) -> None:
        """Replace a reservation by what was really used.

        `Amount()` gives it back whole.
        """
        with self._lock:
            self._reserved -= worst
            self._held += actual - worst

    def close(self) -> None:
        """Book what was used as part of the day."""
        if self._day is not None:
            self._day.close(self._held.pico)

    @property
    def used(self) -> Amount:
        """What this run really used, without open reservations."""
        with self._lock:
            return self._held - self._reserved

    @property
    def reserved(self) -> Amount:
        """What is reserved for requests in flight."""
        with self._lock:
            return self._reserved
