"""One question to a hosted API, with its money: reserve, send, write down, settle.

Guarantees: nothing is sent that is not reserved in the ledger and in the budget, no answer is used that is not on
disk, and a request that has an answer, or whose fate is unknown, is not sent again. A request that does not fit the
budget waits for those in flight, whose worst cases may come back, before the run is stopped.

How long a provider asks to wait, read off an answer that turned a request away.

Guarantees: what names no wait, or a wait that is no number, gives None; no header and no body makes anything raise.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from pipeline.generation.billing import Bill, Judge, Judgement, Verdict, judged
from pipeline.generation.budget import Amount, Budget, BudgetError
from pipeline.generation.engines.openrouter import HttpAnswer, NoAnswerError
from pipeline.generation.ledger import Ledger, LedgerAnswer, LedgerEntry, Request, State
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.records import Json

T = TypeVar("T")

MOST_LOST_IN_A_ROW = 20
# Kept free on the ledger's disk, beside what the answers in flight may need.
SPARE_BYTES = 4 * 1024 * 1024
# A streamed token is a chunk of JSON of this size at most, as recorded; a body is far less.
BYTES_A_TOKEN = 1024

TROUBLE, UNUSABLE, BUDGET_SPENT, TRIPPED = 1, 2, 4, 5


class StopError(Exception):
    """The run cannot go on; the message is for the user, `code` is the exit status."""

    def __init__(self, message: str, code: int = TROUBLE) -> None:
        super().__init__(message)
        self.code = code


class Sender(Protocol):
    """A client that sends one body and gives the answer's bytes back."""

    async def send(self, body: bytes) -> HttpAnswer:
        """Raises NoAnswerError where no status came back."""
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """How a question ended: `entry` has the answer if one is on disk, and is `unknown` where money may be lost on it.

    `sent` is False for one found in the ledger.
    """

    entry: LedgerEntry
    sent: bool
    again: bool = False
    """It was turned away for now, or never left, free of charge: it may be asked again, `wait` seconds later."""

    wait: float | None = None
    why: str = ""


class PaidClient:
    """Asks questions of one run, from any number of tasks."""

    def __init__(self, scribe: LedgerWriter, budget: Budget, client: Sender, *, resend_unknown: bool = False) -> None:
        self._scribe = scribe
        self._budget = budget
        self._client = client
        self._resend_unknown = resend_unknown
        self._freed = asyncio.Event()
        self._lost_in_a_row = 0
        self._closed = False

    async def ask(self, request: Request, worst: Amount, judge: Judge | None = None) -> Reply:
        """The answer to one request, from the ledger or from the provider. Raises StopError.

        `judge` says what an answer makes of the request; without one it is judged as a provider's.
        """
        judge = judge or judged
        entry = await self._claim(request, worst)
        while entry.state is not State.RESERVED:
            if (reply := await self._found(entry, judge)) is not None:
                return reply
            entry = await self._claim(request, worst)
        try:
            return await self._send(request, entry, worst, judge)
        finally:
            self._wake()

    def close(self) -> None:
        """Send nothing more; those that wait for money are told so."""
        self._closed = True
        self._wake()

    async def _claim(self, request: Request, worst: Amount) -> LedgerEntry:
        while True:
            freed = self._freed
            self._require_open()
            self._require_room(worst)
            try:
                return await self._written(self._scribe.do(lambda ledger: self._reserved(ledger, request, worst)))
            except BudgetError as error:
                if not error.in_flight:
                    raise StopError(str(error), BUDGET_SPENT) from error
            await freed.wait()

    def _reserved(self, ledger: Ledger, request: Request, worst: Amount) -> LedgerEntry:
        return ledger.claim(request, lambda: self._budget.reserve(worst), resend_unknown=self._resend_unknown)

    def _wake(self) -> None:
        # A fresh event each time: whoever looked before the money came back finds its own event set.
        self._freed.set()
        self._freed = asyncio.Event()

    async def _send(self, request: Request, entry: LedgerEntry, worst: Amount, judge: Judge) -> Reply:
        try:
            answer = await self._client.send(request.body)
        except NoAnswerError as error:
            return await self._unanswered(entry, worst, error)
        except asyncio.CancelledError:
            self._budget.settle(worst, worst)
            await self._scribe.do(lambda ledger: ledger.lose(entry, "the run was broken off while it was in flight"))
            raise
        kept = LedgerAnswer(answer.status, answer.raw, _headers(answer), answer.generation_id)
        try:
            judgement = await self._kept(entry, kept, judge)
        except LedgerError as error:
            self._budget.settle(worst, worst)
            raise StopError(str(error)) from error
        reply = await self._judged(replace(entry, state=State.ANSWERED, answer=kept), worst, judgement)
        return replace(reply, wait=retry_after_seconds(answer)) if reply.again else reply

    async def _kept(self, entry: LedgerEntry, answer: LedgerAnswer, judge: Judge) -> Judgement:
        """Write the answer down, settled at once where it is one that names its price; what it makes of the request.

        Raises LedgerError.
        """
        try:
            judgement = judge(answer)
        except Exception:  # a judge raises on no bytes, so this is a fault of ours: the answer is paid all the same
            await self._scribe.keep(entry, answer)
            raise
        await self._scribe.keep(entry, answer, judgement.bill if judgement.verdict is Verdict.KEPT else None)
        return judgement

    async def _unanswered(self, entry: LedgerEntry, worst: Amount, error: NoAnswerError) -> Reply:
        if error.sent:
            self._budget.settle(worst, worst)
            await self._written(self._scribe.do(lambda ledger: ledger.lose(entry, str(error))))
            self._count_lost(str(error))
            return Reply(replace(entry, state=State.UNKNOWN, note=str(error)), sent=True)
        self._budget.settle(worst, Amount())
        await self._written(self._scribe.do(lambda ledger: ledger.fail_free(entry, str(error))))
        return Reply(entry, sent=False, again=True, why=str(error))

    async def _found(self, entry: LedgerEntry, judge: Judge) -> Reply | None:
        """What the ledger has, by the rules of a fresh answer; None where it may be asked again now."""
        if entry.state is not State.ANSWERED or entry.answer is None:
            return Reply(entry, sent=False)
        judgement = judge(entry.answer)
        verdict, why = judgement.verdict, judgement.why
        if verdict is Verdict.KEPT:
            return Reply(await self._settled(entry, judgement.bill), sent=False)
        if verdict is Verdict.DOUBT:
            lost = await self._lost(entry, why)
            return None if self._resend_unknown else Reply(lost, sent=False)
        freed = await self._freed_of(entry, why)
        return Reply(freed, sent=False) if verdict is Verdict.REFUSED else None

    async def _judged(self, entry: LedgerEntry, worst: Amount, judgement: Judgement) -> Reply:
        verdict, bill, why = judgement.verdict, judgement.bill, judgement.why
        if verdict is Verdict.KEPT:
            self._lost_in_a_row = 0
            self._budget.settle(worst, _used(bill, worst))
            settled = replace(entry, state=State.SETTLED, cost_pico=bill.cost_pico)
            return Reply(entry if bill.cost_pico is None else settled, sent=True)
        if verdict is Verdict.DOUBT:
            self._budget.settle(worst, worst)
            lost = await self._lost(entry, why)
            self._count_lost(why)
            return Reply(lost, sent=True, why=why)
        self._budget.settle(worst, Amount())
        freed = await self._freed_of(entry, why)
        if verdict is Verdict.HOPELESS:
            raise StopError(f"{judgement.refuses} {why}. Nothing was billed for it")
        return Reply(freed, sent=True, again=verdict is Verdict.LATER, why=f"status {why}")

    async def _freed_of(self, entry: LedgerEntry, why: str) -> LedgerEntry:
        """The entry as free of charge."""
        await self._written(self._scribe.do(lambda ledger: ledger.fail_free(entry, why)))
        return replace(entry, state=State.FAILED_FREE, cost_pico=0)

    async def _lost(self, entry: LedgerEntry, why: str) -> LedgerEntry:
        """The entry as unknown, its answer kept: it counts at its worst case and is sent again only if asked."""
        await self._written(self._scribe.do(lambda ledger: ledger.lose(entry, why)))
        return replace(entry, state=State.UNKNOWN, note=why)

    def _count_lost(self, why: str) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MOST_LOST_IN_A_ROW:
            raise StopError(
                f"{self._lost_in_a_row} requests in a row ended in errors that may be billed, the last so:"
                f" {why.rstrip('.')}. Run the same command again later: nothing that was answered is asked again"
            )

    async def _settled(self, entry: LedgerEntry, bill: Bill) -> LedgerEntry:
        """Settle an answered entry if its cost is known; else it counts at its worst case until it is reconciled."""
        cost = bill.cost_pico
        if cost is None:
            return entry
        tokens = (bill.prompt_tokens, bill.completion_tokens)
        await self._written(self._scribe.do(lambda ledger: ledger.settle(entry, cost, tokens)))
        return replace(entry, state=State.SETTLED, cost_pico=cost)

    async def _written(self, writing: Awaitable[T]) -> T:
        try:
            return await writing
        except LedgerError as error:
            raise StopError(str(error)) from error

    def _require_open(self) -> None:
        if self._closed:
            raise StopError("the run is stopping")

    def _require_room(self, worst: Amount) -> None:
        """Stop while there is still room for the answers in flight: a paid one must not meet a full disk."""
        needed = SPARE_BYTES + (self._budget.reserved.tokens + worst.tokens) * BYTES_A_TOKEN
        folder = self._scribe.ledger.path.parent
        disk = os.statvfs(folder)
        if (free := disk.f_bavail * disk.f_frsize) < needed:
            raise StopError(
                f"{folder}: the disk is nearly full, {free // 1024} KiB are free and answers may need {needed // 1024}."
                " Free some space and run the same command again"
            )


def _headers(answer: HttpAnswer) -> dict[str, Json]:
    kept: dict[str, Json] = {
        "content_type": answer.content_type,
        "complete": answer.complete,
        "retry_after": answer.retry_after,
    }
    return kept if answer.engine_seconds is None else kept | {"engine_seconds": answer.engine_seconds}


def _used(bill: Bill, worst: Amount) -> Amount:
    if bill.cost_pico is None:
        return worst
    counted = bill.prompt_tokens is not None and bill.completion_tokens is not None
    tokens = (bill.prompt_tokens or 0) + (bill.completion_tokens or 0) if counted else worst.tokens
    return Amount(bill.cost_pico, tokens, 1)


def retry_after_seconds(answer: HttpAnswer, now: datetime | None = None) -> float | None:
    """Seconds that the provider asks to wait, None where it names none.

    Retry-After is seconds or a date (RFC 9110, 10.2.3); X-RateLimit-Reset is milliseconds since 1970 (OpenRouter), in
    the headers or in the error's `metadata.headers`.
    """
    moment = now or datetime.now(UTC)
    waits = [_retry_after(answer.retry_after, moment)]
    waits += [_reset(text, moment) for text in (answer.rate_limit_reset, _reset_in_body(answer.raw))]
    return max((wait for wait in waits if wait is not None), default=None)


def _retry_after(text: str | None, now: datetime) -> float | None:
    if text is None:
        return None
    if (seconds := _number(text)) is not None:
        return max(seconds, 0.0)
    try:
        when = email.utils.parsedate_to_datetime(text)
        return max((when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def _reset(text: str | None, now: datetime) -> float | None:
    milliseconds = None if text is None else _number(text)
    return None if milliseconds is None else max(milliseconds / 1000 - now.timestamp(), 0.0)


def _reset_in_body(raw: bytes) -> str | None:
    try:
        found = json.loads(raw)["error"]["metadata"]["headers"]["X-RateLimit-Reset"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
