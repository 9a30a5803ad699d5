"""The ledger of every paid request and answer.

Every request is reserved before it is sent, and every answer written before it is used (SQLite, WAL). Guarantees: what
`transaction` committed survives a crash or a power cut (full fsync). An answer that was paid for is found again by its
request's identity and never asked twice. A request that may have been billed without an answer is shown as such and not
silently sent again. Emulated money stands beside real money and is never added to it. One run at a time may write.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pipeline.base.json_lines import canonical
from pipeline.generation.budget import Amount
from pipeline.generation.day_spend import booked_today
from pipeline.generation.ledger_schema import LedgerError, locked, opened, plain_errors, reading
from pipeline.records import JsonObject, Route

# What a row counts for: its cost once known, nothing if it failed free, else the worst case.
SPENT = "CASE state WHEN 'settled' THEN cost_pico WHEN 'failed_free' THEN 0 ELSE worst_pico END"

TOKENS = (
    "CASE state WHEN 'settled' THEN COALESCE(prompt_tokens + completion_tokens, worst_tokens)"
    " WHEN 'failed_free' THEN 0 ELSE worst_tokens END"
)

ENTRY = (
    "SELECT identity, attempt, state, worst_pico, cost_pico, note, status, raw, headers, generation_id"
    " FROM requests LEFT JOIN answers USING (identity, attempt)"
)


class State(StrEnum):
    """The state of a request.

    `unknown`: it may have been billed, and no answer came, or an error that may cost.
    """

    RESERVED = "reserved"
    ANSWERED = "answered"
    SETTLED = "settled"
    UNKNOWN = "unknown"
    FAILED_FREE = "failed_free"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, before it is sent.

    `body` is its bytes as sent; `worst_pico` and `worst_tokens` are the most that it can cost and count.
    """

    identity: str
    run: str
    route: Route
    row: str
    body: bytes
    worst_pico: int
    dataset: str = ""
    worst_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """An answer, byte for byte.

    A JSON body or the text of a stream, errors included.
    """

    status: int
    raw: bytes
    headers: JsonObject = field(default_factory=dict)
    generation_id: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One attempt at one request, as the ledger has it."""

    identity: str
    attempt: int
    state: State
    worst_pico: int
    cost_pico: int | None = None
    answer: LedgerAnswer | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Spend:
    """One line of the listing, money in pico-dollars.

    A day's requests on one route for one dataset, in one state.
    """

    day: str
    api: str
    route: str
    dataset: str
    state: State
    requests: int
    pico: int


@dataclass(frozen=True, slots=True)
class LedgerExchange:
    """A request and its answer, as written down.

    Bytes as sent and as they came, and when (UTC, ISO 8601).
    """

    identity: str
    row: str
    route: str
    model: str
    body: bytes
    answer: LedgerAnswer
    answered_at: str


def identity(route: Route, body: JsonObject, *, run: str) -> str:
    """Return the sha256 of the route and the canonical body.

    Real money: the same request has one answer in every run. An emulated answer belongs to its run alone: it costs
    nothing, and the emulator behind it changes with the tree.
    """
    scope = run if route.api != "openrouter" else ""
    where = canonical({"api": route.api, "provider": route.provider, "run": scope})
    return hashlib.sha256(where + b"\n" + canonical(body)).hexdigest()


class Ledger:
    """An open ledger.

    Its calls belong inside `transaction()`, from one thread.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Take the lock and open the file.

        Requests that a crash left reserved become `unknown`. Raises LedgerError.
        """
        self.path, self.written = path, 0
        self._clock = clock
        self._lock = locked(path)
        try:
            with plain_errors(path):
                self._db = opened(path)
                self.id = str(self._db.execute("SELECT id FROM ledger").fetchone()[0])
            with self.transaction():
                note = "the run that sent it ended before an answer was written"
                self._db.execute("UPDATE requests SET state = 'unknown', note = ? WHERE state = 'reserved'", (note,))
        except LedgerError:
            self._lock.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Ledger]:
        """Write all or nothing, on disk when it returns.

        Raises LedgerError where the disk or the file refuses.
        """
        with plain_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            written = self.written
            try:
                yield self
                self._db.execute("COMMIT")
            except BaseException:
                self.written = written
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def find(self, identity: str, attempt: int | None = None) -> LedgerEntry | None:
        """Return an attempt at this request, the latest by default.

        With its answer where there is one.
        """
        row = self._db.execute(
            f"{ENTRY} WHERE identity = ? AND attempt = COALESCE(?, attempt) ORDER BY attempt DESC LIMIT 1",
            (identity, attempt),
        ).fetchone()
        return None if row is None else _entry(row)

    def claim(self, request: Request, hold: Callable[[], None], *, resend_unknown: bool = False) -> LedgerEntry:
        """Claim the right to send a request.

        Returns a RESERVED entry, or the entry that stands in the way: answered, settled or unknown. `hold` takes the
        worst case from the budget and is called only where a new reservation is made; what it raises leaves no
        reservation behind. A request that failed free may be sent again, an unknown one only with `resend_unknown`.
        """
        last = self.find(request.identity)
        if last is not None and last.state is State.RESERVED:
            raise LedgerError(f"request {last.identity[:12]} is in flight already: two rows share one identity")
        again = last is None or last.state is State.FAILED_FREE or (last.state is State.UNKNOWN and resend_unknown)
        if last is not None and not again:
            return last
        hold()
        attempt = 1 if last is None else last.attempt + 1
        self._insert(request, attempt)
        return LedgerEntry(request.identity, attempt, State.RESERVED, request.worst_pico)

    def answer(self, entry: LedgerEntry, answer: LedgerAnswer) -> None:
        """Write an answer down, before it is used."""
        changes = "state = 'answered', note = NULL, answered_at = ?"
        self._move(entry, (State.RESERVED, State.UNKNOWN), changes, (self._now(),))
        headers = json.dumps(dict(answer.headers))
        values = (entry.identity, entry.attempt, answer.status, answer.generation_id, headers, answer.raw)
        self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", values)
        self.written += 1

    def settle(self, entry: LedgerEntry, cost_pico: int, tokens: tuple[int | None, int | None] = (None, None)) -> None:
        """Settle an answer at its price.

        `tokens` are the provider's counts of prompt and completion.
        """
        changes = "state = 'settled', cost_pico = ?, prompt_tokens = ?, completion_tokens = ?, settled_at = ?"
        self._move(entry, (State.ANSWERED,), changes, (cost_pico, *tokens, self._now()))

    def reconcile(
        self, entry: LedgerEntry, cost_pico: int, tokens: tuple[int | None, int | None] = (None, None)
    ) -> None:
        """Settle a request at what the provider says it billed.

        Where that is nothing, it failed free and may be sent again.
        """
        state = State.SETTLED if cost_pico else State.FAILED_FREE
        changes = f"state = '{state}', cost_pico = ?, prompt_tokens = ?, completion_tokens = ?, settled_at = ?"
        self._move(entry, (State.ANSWERED, State.UNKNOWN), changes, (cost_pico, *tokens, self._now()))

    def costs(self, route: Route, most: int = 1000) -> list[int]:
        """Return the latest settled costs on one route and model.

        In pico-dollars, at most `most` of them.
        """
        rows = self._db.execute(
            "SELECT cost_pico FROM requests WHERE api = ? AND route = ? AND model = ? AND state = 'settled'"
            " ORDER BY reserved_at DESC LIMIT ?",
            (route.api, route.name, route.model, most),
        )
        return [int(cost) for (cost,) in rows]

    def unsettled(self, api: str) -> list[LedgerEntry]:
        """Return requests whose cost is not known, oldest first.

        Answered without a price, or unknown; with their answers.
        """
        rows = self._db.execute(
            f"{ENTRY} WHERE api = ? AND state IN ('answered', 'unknown') ORDER BY reserved_at",
            (api,),
        )
        return [_entry(row) for row in rows]

    def fail_free(self, entry: LedgerEntry, why: str) -> None:
        """Mark a request as not billed.

        It never left, or was turned away.
        """
        self._move(entry, (State.RESERVED, State.ANSWERED), "state = 'failed_free', cost_pico = 0, note = ?", (why,))

    def lose(self, entry: LedgerEntry, why: str) -> None:
        """Mark a request as unknown.

        It was sent, and no answer came, or one in doubt: it may have been billed.
        """
        self._move(entry, (State.RESERVED, State.ANSWERED), "state = 'unknown', note = ?", (why,))

    def free(self, run: str) -> int:
        """Mark unknown requests that could cost nothing as free.

        Returns how many of this run there were.
        """
        changes = "state = 'failed_free', cost_pico = 0"
        where = "run = ? AND state = 'unknown' AND worst_pico = 0"
        return self._db.execute(f"UPDATE requests SET {changes} WHERE {where}", (run,)).rowcount  # noqa: S608 - constant text

    def engine_seconds(self, run: str) -> float:
        """Return seconds that our own engine spent on this run.

        Whatever came of its requests.
        """
        sum_ = "COALESCE(SUM(json_extract(headers, '$.engine_seconds')), 0)"
        sql = f"SELECT {sum_} FROM requests JOIN answers USING (identity, attempt) WHERE run = ?"  # noqa: S608 - constant text
        return float(self._db.execute(sql, (run,)).fetchone()[0])

    def spent(self, *, api: str | None = None, day: str | None = None, run: str | None = None) -> int:
        """Return pico-dollars, with unsettled requests at their worst case."""
        return _spent(self._db, api=api, day=day, run=run)

    def used(self, *, api: str | None = None, run: str | None = None, today: bool = False) -> Amount:
        """Return money, tokens and requests of a run or day.

        Of a run, or of this UTC day through one API; unsettled requests at their worst case.
        """
        wanted = {"api": api, "run": run, "day": self._now()[:10] if today else None}
        keys = {key: value for key, value in wanted.items() if value is not None}
        where = " AND ".join(f"{key} = :{key}" for key in keys) or "1"
        sums = f"COALESCE(SUM({SPENT}), 0), COALESCE(SUM({TOKENS}), 0), COALESCE(SUM(state != 'failed_free'), 0)"
        pico, tokens, requests = self._db.execute(f"SELECT {sums} FROM requests WHERE {where}", keys).fetchone()  # noqa: S608 - constants
        return Amount(int(pico), int(tokens), int(requests))

    def spent_today(self, api: str) -> int:
        """Return pico-dollars of this UTC day through one API.

        Under the lock no other run can add to it.
        """
        return self.spent(api=api, day=self._now()[:10])

    def tally(self, run: str) -> dict[State, tuple[int, int]]:
        """Return requests and pico-dollars of one run by state."""
        rows = self._db.execute(f"SELECT state, COUNT(*), SUM({SPENT}) FROM requests WHERE run = ? GROUP BY 1", (run,))  # noqa: S608 - SPENT is a constant
        return {State(state): (count, pico) for state, count, pico in rows}

    def writes(self, run: str) -> int:
        """Return the number of reservations and answers of one run.

        It never falls. `written` counts those since opening, of all runs.
        """
        sql = "SELECT COUNT(*) + COUNT(answers.identity) FROM requests LEFT JOIN answers USING (identity, attempt)"
        return int(self._db.execute(f"{sql} WHERE run = ?", (run,)).fetchone()[0])

    def close(self) -> None:
        """Close the file and release the lock."""
        self._db.close()
        self._lock.close()

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")

    def _insert(self, request: Request, attempt: int) -> None:
        now, route = self._now(), request.route
        columns = (
            "identity, attempt, state, run, api, route, model, dataset, row, day, reserved_at, worst_pico, worst_tokens"
        )
        values = (
            *(request.identity, attempt, State.RESERVED, request.run, route.api, route.name, route.model),
            *(request.dataset, request.row, now[:10], now, request.worst_pico, request.worst_tokens),
        )
        marks = ", ".join("?" * len(values))
        self._db.execute(f"INSERT INTO requests ({columns}) VALUES ({marks})", values)  # noqa: S608 - constant text
        self._db.execute("INSERT OR IGNORE INTO bodies VALUES (?, ?)", (request.identity, request.body))
        self.written += 1

    def _move(self, entry: LedgerEntry, states: tuple[State, ...], changes: str, values: tuple[object, ...]) -> None:
        allowed = ", ".join(f"'{state}'" for state in states)
        sql = f"UPDATE requests SET {changes} WHERE identity = ? AND attempt = ? AND state IN ({allowed})"  # noqa: S608 - constant text
        if self._db.execute(sql, (*values, entry.identity, entry.attempt)).rowcount != 1:
            raise LedgerError(f"request {entry.identity[:12]}, attempt {entry.attempt}, is not {' or '.join(states)}")


def spent_today(path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> int:
    """Return pico-dollars of real money this UTC day.

    What all checkouts booked, or what this ledger knows where that is more. Unsettled requests count at their worst
    case. Takes no lock and changes nothing, so it may be called during a run. Raises LedgerError.
    """
    with reading(path) as db:
        known = 0 if db is None else _spent(db, api="openrouter", day=clock().date().isoformat())
    return max(known, booked_today(clock))


def spent_by(path: Path, run: str) -> int:
    """Return pico-dollars of one run.

    Unsettled requests count at their worst case; 0 without a ledger. Raises LedgerError.
    """
    with reading(path) as db:
        return 0 if db is None else _spent(db, run=run)


def listing(path: Path) -> list[Spend]:
    """Return spend by day, route, dataset and state.

    Newest day first. Takes no lock. Raises LedgerError.
    """
    with reading(path) as db:
        if db is None:
            return []
        rows = db.execute(
            f"SELECT day, api, route, dataset, state, COUNT(*), SUM({SPENT}) FROM requests"  # noqa: S608 - SPENT is a constant
            " GROUP BY day, api, route, dataset, state ORDER BY day DESC, api, route, dataset, state"
        ).fetchall()
        return [Spend(day, api, route, data, State(state), n, pico) for day, api, route, data, state, n, pico in rows]


def exchanged(path: Path, run: str) -> list[LedgerExchange]:
    """Return every answered request of a run, errors included.

    In order of sending. Raises LedgerError.
    """
    with reading(path) as db:
        if db is None:
            return []
        rows = db.execute(
            "SELECT identity, row, route, model, body, status, raw, headers, generation_id, answered_at FROM requests"
            " JOIN answers USING (identity, attempt) JOIN bodies USING (identity) WHERE run = ? ORDER BY reserved_at",
            (run,),
        ).fetchall()
    return [
        LedgerExchange(
            key, row, route, model, body, LedgerAnswer(status, raw, json.loads(headers), generation_id), answered_at
        )
        for key, row, route, model, body, status, raw, headers, generation_id, answered_at in rows
    ]


def answer_of(path: Path, identity: str) -> bytes | None:
    """Return the newest answer to a request, byte for byte.

    None where the ledger holds none. Takes no lock. Raises LedgerError.
    """
    with reading(path) as db:
        sql = "SELECT raw FROM answers WHERE identity = ? ORDER BY attempt DESC LIMIT 1"
        row = None if db is None else db.execute(sql, (identity,)).fetchone()
    return None if row is None else bytes(row[0])


def _spent(db: sqlite3.Connection, **keys: str | None) -> int:
    wanted = {key: value for key, value in keys.items() if value is not None}
    where = " AND ".join(f"{key} = :{key}" for key in wanted) or "1"
    row = db.execute(f"SELECT COALESCE(SUM({SPENT}), 0) FROM requests WHERE {where}", wanted).fetchone()  # noqa: S608 - keys are parameter names
    return int(row[0])


def _entry(row: tuple[object, ...]) -> LedgerEntry:
    identity_, attempt, state, worst, cost, note, status, raw, headers, generation_id = row
    answer = None
    if raw is not None:
        answer = LedgerAnswer(int(str(status)), raw, json.loads(str(headers)), generation_id)  # type: ignore[arg-type]
    return LedgerEntry(str(identity_), int(str(attempt)), State(str(state)), int(str(worst)), cost, answer, note)  # type: ignore[arg-type]
