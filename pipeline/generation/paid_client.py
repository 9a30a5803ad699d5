"""Send one paid request: reserve, send, write down, settle.

Guarantees: nothing is sent that is not reserved in the ledger and in the budget. No answer is used that is not on
disk. A request that has an answer, or may have been billed without one, is not sent again. A request that does not fit
the budget waits for those in flight, whose worst cases may come back, before the run is stopped.
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
from pipeline.generation.ledger import LedgerAnswer, LedgerEntry, Request, State
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.outcome import BUDGET_SPENT, StopError
from pipeline.records import Json, Refusal, RefusedError

T = TypeVar("T")

MOST_LOST_IN_A_ROW = 20
# Kept free on the ledger's disk, beside what the answers in flight may need.
SPARE_BYTES = 4 * 1024 * 1024
# A streamed token is a chunk of JSON of this size at most, as recorded; a body is far less.
BYTES_A_TOKEN = 1024


class Sender(Protocol):
    """A client that sends bytes and returns the answer's."""

    async def send(self, body: bytes) -> HttpAnswer:
        """Raises NoAnswerError where no status came back."""
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """How a request ended.

    `entry` holds the answer where one is on disk, and is `unknown` where money may be lost on it. `sent` is False for
    an answer that the ledger already had.
    """

    entry: LedgerEntry
    sent: bool
    again: bool = False
    """Turned away for now, or never sent, free of charge: it may be sent again, `wait` seconds later."""

    wait: float | None = None
    why: str = ""


class PaidClient:
    """A client with a ledger and a budget.

    It belongs to one run; any number of its tasks may use it.
    """

    def __init__(self, writer: LedgerWriter, budget: Budget, client: Sender, *, resend_unknown: bool = False) -> None:
        self._writer = writer
        self._budget = budget
        self._client = client
        self._resend_unknown = resend_unknown
        self._freed = asyncio.Event()
        self._lost_in_a_row = 0
        self._closed = False

    async def ask(
        self, request: Request, worst: Amount, judge: Judge | None = None, withheld: Refusal | None = None
    ) -> Reply:
        """Return the answer from the ledger, or from the provider.

        `judge` decides what an answer means for the request; the default judges it as a provider's. `withheld` is why
        it must not be sent: what was answered before is used all the same. Raises StopError, RefusedError.
        """
        judge = judge or judged
        entry = await self._claim(request, worst, withheld)
        while entry.state is not State.RESERVED:
            if (reply := await self._found(entry, judge)) is not None:
                return reply
            entry = await self._claim(request, worst, withheld)
        try:
            return await self._send(request, entry, worst, judge)
        finally:
            self._wake()

    def close(self) -> None:
        """Send nothing more; requests that wait for money stop."""
        self._closed = True
        self._wake()

    async def _claim(self, request: Request, worst: Amount, withheld: Refusal | None) -> LedgerEntry:
        """Reserve the worst case.

        Waits while it does not fit beside others in flight, whose worst cases may come back. Raises RefusedError
        instead of a reservation where the request is withheld.
        """

        def hold() -> None:
            if withheld is not None:
                raise RefusedError.of(withheld)
            self._budget.reserve(worst)

        while True:
            freed = self._freed
            if self._closed:
                raise StopError("the run is stopping")
            self._require_disk_space(worst)
            try:
                return await self._written(
                    self._writer.do(lambda ledger: ledger.claim(request, hold, resend_unknown=self._resend_unknown))
                )
            except BudgetError as error:
                if not error.in_flight:
                    raise StopError(str(error), BUDGET_SPENT) from error
            await freed.wait()

    def _require_disk_space(self, worst: Amount) -> None:
        """Stop the run before the ledger's disk is full.

        There must be room for the answers in flight: a paid one must not meet a full disk.
        """
        needed = SPARE_BYTES + (self._budget.reserved.tokens + worst.tokens) * BYTES_A_TOKEN
        folder = self._writer.ledger.path.parent
        disk = os.statvfs(folder)
        if (free := disk.f_bavail * disk.f_frsize) < needed:
            raise StopError(
                f"{folder}: the disk is nearly full, {free // 1024} KiB are free and answers may need {needed // 1024}."
                " Free some space and run the same command again"
            )

    def _wake(self) -> None:
        # A fresh event each time: a task that looked before the money came back finds its own event set.
        self._freed.set()
        self._freed = asyncio.Event()

    async def _found(self, entry: LedgerEntry, judge: Judge) -> Reply | None:
        """Judge an answer from the ledger like a fresh one.

        None where the request may be asked again now.
        """
        if entry.state is not State.ANSWERED or entry.answer is None:
            return Reply(entry, sent=False)
        judgement = judge(entry.answer)
        verdict, bill, why = judgement.verdict, judgement.bill, judgement.why
        if verdict is Verdict.KEPT:
            if (cost := bill.cost_pico) is None:  # it counts at its worst case until it is reconciled
                return Reply(entry, sent=False)
            tokens = (bill.prompt_tokens, bill.completion_tokens)
            await self._written(self._writer.do(lambda ledger: ledger.settle(entry, cost, tokens)))
            return Reply(replace(entry, state=State.SETTLED, cost_pico=cost), sent=False)
        if verdict is Verdict.DOUBT:
            lost = await self._lost(entry, why)
            return None if self._resend_unknown else Reply(lost, sent=False)
        freed = await self._freed_of(entry, why)
        return Reply(freed, sent=False) if verdict is Verdict.REFUSED else None

    async def _send(self, request: Request, entry: LedgerEntry, worst: Amount, judge: Judge) -> Reply:
        """Send a reserved request once; write the answer down."""
        try:
            answer = await self._client.send(request.body)
        except NoAnswerError as error:
            return await self._unanswered(entry, worst, error)
        except asyncio.CancelledError:
            self._budget.settle(worst, worst)
            await self._writer.do(lambda ledger: ledger.lose(entry, "the run was broken off while it was in flight"))
            raise
        headers: dict[str, Json] = {
            "content_type": answer.content_type,
            "complete": answer.complete,
            "retry_after": answer.retry_after,
        }
        headers |= {"cut": answer.cut} if answer.cut else {}
        headers |= {} if answer.engine_seconds is None else {"engine_seconds": answer.engine_seconds}
        kept = LedgerAnswer(answer.status, answer.raw, headers, answer.generation_id)
        try:
            judgement = await self._keep(entry, kept, judge)
        except LedgerError as error:
            self._budget.settle(worst, worst)
            raise StopError(str(error)) from error
        reply = await self._judged(replace(entry, state=State.ANSWERED, answer=kept), worst, judgement)
        return replace(reply, wait=retry_after_seconds(answer)) if reply.again else reply

    async def _unanswered(self, entry: LedgerEntry, worst: Amount, error: NoAnswerError) -> Reply:
        if error.sent:
            self._budget.settle(worst, worst)
            await self._written(self._writer.do(lambda ledger: ledger.lose(entry, str(error))))
            self._count_lost(str(error))
            return Reply(replace(entry, state=State.UNKNOWN, note=str(error)), sent=True)
        self._budget.settle(worst, Amount())
        await self._written(self._writer.do(lambda ledger: ledger.fail_free(entry, str(error))))
        return Reply(entry, sent=False, again=True, why=str(error))

    async def _keep(self, entry: LedgerEntry, answer: LedgerAnswer, judge: Judge) -> Judgement:
        """Write the answer down and judge it.

        An answer that names its price is settled in the same commit. Raises LedgerError.
        """
        try:
            judgement = judge(answer)
        except Exception:  # a judge raises on no bytes, so this is a fault of ours: the answer is paid all the same
            await self._writer.keep(entry, answer)
            raise
        await self._writer.keep(entry, answer, judgement.bill if judgement.verdict is Verdict.KEPT else None)
        return judgement

    async def _judged(self, entry: LedgerEntry, worst: Amount, judgement: Judgement) -> Reply:
        """Settle budget and ledger by a fresh answer's verdict."""
        verdict, bill, why = judgement.verdict, judgement.bill, judgement.why
        if verdict is Verdict.KEPT:
            self._lost_in_a_row = 0
            self._budget.settle(worst, _used(bill, worst))
            self._require_read(entry, bill)
            settled = replace(entry, state=State.SETTLED, cost_pico=bill.cost_pico)
            return Reply(entry if bill.cost_pico is None else settled, sent=True)
        if verdict is Verdict.DOUBT:
            self._budget.settle(worst, worst)
            lost = await self._lost(entry, why)
            self._require_read(entry, bill)
            self._count_lost(why)
            return Reply(lost, sent=True, why=why)
        self._budget.settle(worst, Amount())
        freed = await self._freed_of(entry, why)
        if verdict is Verdict.HOPELESS:
            raise StopError(f"{judgement.refuses} {why}. Nothing was billed for it")
        return Reply(freed, sent=True, again=verdict is Verdict.LATER, why=f"status {why}")

    def _require_read(self, entry: LedgerEntry, bill: Bill) -> None:
        """Stop the run at a cost that cannot be read.

        The answer is on disk, counts at its worst case, and is used by the next run. Raises StopError.
        """
        if bill.unread:
            answer = entry.answer.generation_id if entry.answer else None
            raise StopError(
                f"the cost of answer {answer or entry.identity} cannot be read ({bill.unread}). The answer is kept and"
                " counts at its worst case. Look it up at the provider, run python -m pipeline ledger --reconcile, and"
                " run the same command again"
            )

    async def _freed_of(self, entry: LedgerEntry, why: str) -> LedgerEntry:
        """Write the entry down as free of charge."""
        await self._written(self._writer.do(lambda ledger: ledger.fail_free(entry, why)))
        return replace(entry, state=State.FAILED_FREE, cost_pico=0)

    async def _lost(self, entry: LedgerEntry, why: str) -> LedgerEntry:
        """Write the entry down as unknown, with its answer.

        It counts at its worst case and is sent again only with --resend-unknown.
        """
        await self._written(self._writer.do(lambda ledger: ledger.lose(entry, why)))
        return replace(entry, state=State.UNKNOWN, note=why)

    def _count_lost(self, why: str) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MOST_LOST_IN_A_ROW:
            raise StopError(
                f"{self._lost_in_a_row} requests in a row ended in errors that may be billed, the last so:"
                f" {why.rstrip('.')}. Run the same command again later: nothing that was answered is asked again"
            )

    async def _written(self, writing: Awaitable[T]) -> T:
        try:
            return await writing
        except LedgerError as error:
            raise StopError(str(error)) from error


def _used(bill: Bill, worst: Amount) -> Amount:
    if bill.cost_pico is None:
        return worst
    counted = bill.prompt_tokens is not None and bill.completion_tokens is not None
    tokens = (bill.prompt_tokens or 0) + (bill.completion_tokens or 0) if counted else worst.tokens
    return Amount(bill.cost_pico, tokens, 1)


def retry_after_seconds(answer: HttpAnswer, now: datetime | None = None) -> float | None:
    """Return the seconds that the provider asks to wait.

    None where it names no wait, or one that is no number; no header and no body makes it raise. Retry-After is seconds
    or a date (RFC 9110, 10.2.3). X-RateLimit-Reset is milliseconds since 1970 (OpenRouter), in the headers or in the
    error's `metadata.headers`. The longest counts.
    """
    moment = now or datetime.now(UTC)
    waits = [] if answer.retry_after is None else [_retry_after(answer.retry_after, moment)]
    resets = [_number(text) for text in (answer.rate_limit_reset, _reset_in_body(answer.raw)) if text is not None]
    waits += [max(reset / 1000 - moment.timestamp(), 0.0) for reset in resets if reset is not None]
    return max((wait for wait in waits if wait is not None), default=None)


def _retry_after(text: str, now: datetime) -> float | None:
    if (seconds := _number(text)) is not None:
        return max(seconds, 0.0)
    try:
        when = email.utils.parsedate_to_datetime(text)
        return max((when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


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
