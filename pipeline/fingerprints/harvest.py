"""Collect the answers of a file of exchanges.

Guarantees: each line is an answer, a copy of an earlier line, or counted with the reason why it is neither. A line that
cannot be read does not affect the others. Raises ExchangesError where no line at all is an exchange.
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
"""Raised for text that has no tokens, or is nested too deeply."""


@dataclass(slots=True)
class Harvest:
    """What the lines gave; mutable while they are learned from."""

    answers: list[Observation] = field(default_factory=list)
    skipped: Counter[Skipped] = field(default_factory=Counter)
    bad: list[BadLine] = field(default_factory=list)
    copies: int = 0

    @property
    def lines(self) -> int:
        """The number of lines that were read."""
        return len(self.answers) + self.skipped.total() + len(self.bad) + self.copies

    def add(self, one: Observation | Skipped) -> None:
        """Add one exchange that was observed or skipped."""
        if isinstance(one, Skipped):
            self.skipped[one] += 1
        else:
            self.answers.append(one)

    def skip_broken(self, broken: Observation, error: Exception) -> None:
        """Count an answer as skipped that raised one of `BROKEN`."""
        self.answers = [one for one in self.answers if one is not broken]
        self.add(skipped_by(error))

    def said(self) -> Iterator[str]:
        """Yield the account of all lines, in sentences."""
        for one in self.bad[:MOST_BAD_LINES]:
            yield f"line {one.line}: {one.why}"
        if len(self.bad) > MOST_BAD_LINES:
            yield f"and {len(self.bad) - MOST_BAD_LINES} more lines that are no exchange"
        yield f"{self.lines} lines: {len(self.answers)} answers learned from, {len(self.bad)} no exchange"
        if self.copies:
            yield f"{self.copies} not learned from: the same request and answer came before"
        for reason in sorted({one.reason for one in self.skipped}):
            of = Counter({one.of: n for one, n in self.skipped.items() if one.reason == reason})
            names = ", ".join(f"{name} {n}" for name, n in of.most_common(MOST_OF_A_REASON))
            more = f" and {len(of) - MOST_OF_A_REASON} more" if len(of) > MOST_OF_A_REASON else ""
            yield f"{of.total()} not learned from: {reason} ({names}{more})"


def harvest_of_file(path: Path, formats: Mapping[str, Format]) -> Harvest:
    """Return what every line of a file gave.

    Raises ExchangesError where the file cannot be read, or no line of it is an exchange.
    """
    found = harvest(read_exchanges(path), formats)
    if len(found.bad) == found.lines:
        first = f"; line {found.bad[0].line}: {found.bad[0].why}" if found.bad else ""
        raise ExchangesError(f"{path} holds no exchange{first}. Name a file with one exchange a line.")
    return found


def harvest(lines: Iterable[Exchange | BadLine], formats: Mapping[str, Format]) -> Harvest:
    """Return what these lines gave.

    The same request with the same answer is one exchange, even if it was copied.
    """
    found, known = Harvest(), set[bytes]()
    for one in lines:
        if isinstance(one, BadLine):
            found.bad.append(one)
            continue
        try:
            digest = _digest(one)
            if digest in known:
                found.copies += 1
                continue
            known.add(digest)
            found.add(observe(one, formats))
        except BROKEN as error:
            found.add(skipped_by(error))
    return found


def skipped_by(error: Exception) -> Skipped:
    """Return why an answer that raised this is skipped."""
    why = str(error.refusal.reason) if isinstance(error, RefusedError) else type(error).__name__
    return Skipped("its text or its request has no reading", why)


def _digest(exchange: Exchange) -> bytes:
    """Hash request and answer. Raises RecursionError if nested too deeply."""
    request = json.dumps(exchange.request, sort_keys=True)
    where = json.dumps([exchange.endpoint, exchange.provider, exchange.model, exchange.status, exchange.stream])
    return hashlib.sha256("\0".join((where, request, exchange.body)).encode("utf-8", "surrogatepass")).digest()
