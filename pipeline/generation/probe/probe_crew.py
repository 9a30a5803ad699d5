"""The questions of a probe, asked a few at a time, and what became of each.

Guarantees: a stop of any kind lets what is in flight come in; whatever one answer makes the program stumble over is
said of that answer, and stops no other.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from pipeline.gate.gate import Permit
from pipeline.generation.billing import completion_of, error_text
from pipeline.generation.ledger import State
from pipeline.generation.outcome import guarded
from pipeline.generation.paid_client import TROUBLE, Desk, Reply, StopError
from pipeline.generation.plan import Plan
from pipeline.generation.probe.requests import Question
from pipeline.generation.retry import Retry
from pipeline.records import Refusal

INTERRUPTED = 130
MOST_GIVEN_UP = 3
"""So many in a row that were turned away at every attempt, and the provider is down."""


class Fate(StrEnum):
    """`refused`: turned away for good, free of charge. `again`: for now. `unknown`: perhaps billed, and no answer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    AGAIN = "again"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one question; `why` says what is not as it is known to be, and is empty where all is."""

    question: Question
    fate: Fate
    why: str = ""


@dataclass(slots=True)
class Findings:
    """What came of a probe, and why it stopped, where it did."""

    told: list[Told] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    spent_pico: int = 0
    message: str = ""
    code: int = 0

    def stop(self, message: str, code: int) -> None:
        """The first reason stands."""
        if not self.code:
            self.message, self.code = message, code

    def by_fate(self) -> Counter[str]:
        """How many questions had which fate."""
        return Counter(str(told.fate) for told in self.told)


class Crew:
    """Asks; `provider` is the display name of the one that was asked for."""

    def __init__(self, permit: Permit, plan: Plan, desk: Desk, provider: str) -> None:
        self._permit = permit
        self._desk = desk
        self._workers = plan.concurrency
        self._provider = provider
        self._findings = Findings()
        self._closing = asyncio.Event()
        self._retry = Retry(plan.patience, self._pause, self._closing.is_set)
        self._given_up = 0

    async def ask(self, questions: Sequence[Question]) -> Findings:
        """Every question, until one stops the rest."""
        waiting, findings = iter(questions), self._findings
        with self._signals():
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._workers):
                        group.create_task(self._work(waiting))
            except asyncio.CancelledError:
                findings.stop("broken off: what was in flight may have been paid for", INTERRUPTED)
        if lost := findings.by_fate().keys() & {Fate.AGAIN, Fate.UNKNOWN}:
            findings.stop(f"not all came to an answer ({', '.join(sorted(lost))})", TROUBLE)
        return findings

    async def _work(self, waiting: Iterator[Question]) -> None:
        while not self._closing.is_set() and (question := next(waiting, None)) is not None:
            try:
                if datetime.now(UTC) >= self._permit.expires:
                    self._stop("the attestation expired. Run: nox -s contract, then the same command", TROUBLE)
                    return
                self._findings.told.append(await self._one(question))
            except StopError as error:
                self._stop(str(error), error.code)
            except Exception as error:  # noqa: BLE001 - an error of our own must not lose the others' answers either
                self._stop(f"an error of this program: {type(error).__name__}: {error}", TROUBLE)

    async def _one(self, question: Question) -> Told:
        reply = await self._retry(lambda: self._desk.ask(question.request, question.worst))
        told = self._told(question, reply)
        self._given_up = self._given_up + 1 if told.fate is Fate.AGAIN and not self._closing.is_set() else 0
        if self._given_up >= MOST_GIVEN_UP:
            self._stop(f"{self._given_up} in a row were turned away at every attempt: {told.why}", TROUBLE)
        return told

    def _told(self, question: Question, reply: Reply) -> Told:
        entry = reply.entry
        why = reply.why or entry.note or ""
        if reply.again:
            return Told(question, Fate.AGAIN, why)
        if entry.state is State.FAILED_FREE:
            return Told(question, Fate.REFUSED, why or (error_text(entry.answer) if entry.answer else ""))
        if entry.answer is None or entry.state is State.UNKNOWN:
            return Told(question, Fate.UNKNOWN, why)
        answer = entry.answer
        completion = guarded(lambda: completion_of(answer, stream=question.stream))
        if isinstance(completion, Refusal):
            return Told(question, Fate.ANSWERED, completion.detail)
        if completion.provider not in (None, self._provider):
            return Told(question, Fate.ANSWERED, f"{completion.provider} answered, not {self._provider}")
        return Told(question, Fate.ANSWERED, question.probe.known.differs(completion))

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for a probe that is stopping."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _stop(self, message: str, code: int) -> None:
        self._findings.stop(message, code)
        self._closing.set()
        self._desk.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C stops asking and lets answers in flight come in; the second breaks them off."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            if self._closing.is_set() and task is not None:
                task.cancel()
            self._stop("interrupted: what was in flight has come in and is written", INTERRUPTED)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
