"""The answers of a file of exchanges, and an account of the lines that gave none.

Guarantees: each line is an answer, a copy of one that came before, or counted with the reason why it is neither; one
that nothing can be read from loses no other. Raises ExchangesError where no line at all is an exchange.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.fingerprints.exchanges import BadLine, Exchange, ExchangesError, read_exchanges
from pipeline.fingerprints.observations import Observation, Skipped, observe
from pipeline.formats.format import Format
from pipeline.records import RefusedError

MOST_BAD_LINES, MOST_OF_A_REASON = 20, 8
BROKEN = (RefusedError, UnicodeError, RecursionError)
"""What text raises that has no tokens, or is nested too deeply."""


@dataclass(slots=True)
class Harvest:
    """What came of the lines; mutable while they are read and learned from."""

    answers: list[Observation] = field(default_factory=list)
    skipped: Counter[Skipped] = field(default_factory=Counter)
    bad: list[BadLine] = field(default_factory=list)
    copies: int = 0

    @property
    def lines(self) -> int:
        """How many lines were read."""
        return len(self.answers) + self.skipped.total() + len(self.bad) + self.copies

    def add(self, one: Observation | Skipped) -> None:
        """One exchange that was looked at."""
        if isinstance(one, Skipped):
            self.skipped[one] += 1
        else:
            self.answers.append(one)

    def lose(self, broken: Observation, why: str) -> None:
        """An answer that turned out to be one that nothing can be learned from."""
        self.answers = [one for one in self.answers if one is not broken]
        self.add(unlearned(why))

    def said(self) -> Iterator[str]:
        """The account, in sentences."""
        for one in self.bad[:MOST_BAD_LINES]:
            yield f"line {one.line}: {one.why}"
        if len(self.bad) > MOST_BAD_LINES:
            yield f"and {len(self.bad) - MOST_BAD_LINES} more lines that are no exchange"
        yield f"{self.lines} lines: {len(self.answers)} answers learned from, {len(self.bad)} no exchange"
        if self.copies:
            yield f"{self.copies} not learned from: the same request and answer came before"
        for reason in sorted({one.reason for one in self.skipped}):
            yield _account(reason, Counter({one.of: n for one, n in self.skipped.items() if one.reason == reason}))


def _account(reason: str, of: Counter[str]) -> str:
    told = ", ".join(f"{name} {n}" for name, n in of.most_common(MOST_OF_A_REASON))
    more = len(of) - MOST_OF_A_REASON
    return f"{of.total()} not learned from: {reason} ({told}{f' and {more} more' if more > 0 else ''})"


def harvest(lines: Iterable[Exchange | BadLine], formats: Mapping[str, Format]) -> Harvest:
    """What can be learned from, among these lines."""
    found, known = Harvest(), set[bytes]()
    for one in lines:
        if isinstance(one, BadLine):
            found.bad.append(one)
        elif (identity := _identity(one)) is None:
            found.add(unlearned("RecursionError"))
        elif identity in known:
            found.copies += 1
        else:
            known.add(identity)
            found.add(_observed(one, formats))
    return found


def _observed(exchange: Exchange, formats: Mapping[str, Format]) -> Observation | Skipped:
    try:
        return observe(exchange, formats)
    except BROKEN as error:
        return unlearned(why_broken(error))


def unlearned(why: str) -> Skipped:
    """An answer that nothing can be learned from."""
    return Skipped("its text or its request has no reading", why)


def why_broken(error: Exception) -> str:
    """One of `BROKEN` in a word or two."""
    return str(error.refusal.reason) if isinstance(error, RefusedError) else type(error).__name__


def harvest_of_file(path: Path, formats: Mapping[str, Format]) -> Harvest:
    """Every line of the file. Raises ExchangesError."""
    found = harvest(read_exchanges(path), formats)
    if len(found.bad) == found.lines:
        first = f"; line {found.bad[0].line}: {found.bad[0].why}" if found.bad else ""
        raise ExchangesError(f"{path} holds no exchange{first}. Name a file with one exchange a line.")
    return found


def _identity(exchange: Exchange) -> bytes | None:
    """The same request with the same answer is one exchange, however often it was copied; None if nested too deeply."""
    try:
        asked = json.dumps(exchange.request, sort_keys=True)
    except RecursionError:
        return None
    where = json.dumps([exchange.endpoint, exchange.provider, exchange.model, exchange.status, exchange.stream])
    return hashlib.sha256("\0".join((where, asked, exchange.body)).encode("utf-8", "surrogatepass")).digest()
