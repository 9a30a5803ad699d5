"""The thread that writes the ledger.

Writes that arrive together share one fsync, and the event loop never waits for a disk. Guarantees: an operation's
result is returned only after its transaction is on disk. Where the disk takes no more, an answer that was paid for goes
to a spill file beside the ledger, which the next run reads in first.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeAlias, TypeVar, cast

from pipeline.generation.billing import Bill
from pipeline.generation.ledger import Ledger, LedgerAnswer, LedgerEntry, State
from pipeline.generation.ledger_mark import LedgerMark
from pipeline.generation.ledger_schema import LedgerError

T = TypeVar("T")
Operation: TypeAlias = Callable[[Ledger], object]
Work: TypeAlias = "tuple[Operation, asyncio.Future[object]]"
# One transaction takes at most this many operations, so that the first of them does not wait long.
LARGEST_BATCH = 256


class LedgerWriter:
    """Run operations on one ledger, in order.

    Any number of tasks of one event loop may use it. Use as `async with`, or close it.
    """

    def __init__(self, ledger: Ledger, mark: LedgerMark | None = None) -> None:
        self.ledger, self._mark = ledger, mark
        self._queue: queue.SimpleQueue[list[Work] | None] = queue.SimpleQueue()
        self._waiting: list[Work] = []
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, name="ledger", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def do(self, operation: Callable[[Ledger], T]) -> T:
        """Run an operation; return its result once on disk.

        Raises what it raised, or LedgerError.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._hand_over)  # whatever else this turn of the loop brings goes with it
        self._waiting.append((operation, future))
        # Shielded: a task that is cancelled must not take back what is being written.
        return cast("T", await asyncio.shield(future))

    def _hand_over(self) -> None:
        if self._waiting:
            self._queue.put(self._waiting)
            self._waiting = []

    async def keep(self, entry: LedgerEntry, answer: LedgerAnswer, bill: Bill | None = None) -> None:
        """Write a paid answer down.

        Where the ledger fails, into a spill file, and raises LedgerError. With a `bill` that names its cost, the answer
        is settled in the same commit.
        """

        def write(ledger: Ledger) -> None:
            ledger.answer(entry, answer)
            if bill is not None and bill.cost_pico is not None:
                ledger.settle(entry, bill.cost_pico, (bill.prompt_tokens, bill.completion_tokens))

        try:
            await self.do(write)
        except LedgerError as error:
            try:
                spill(self.ledger.path, entry, answer)
            except OSError as second:
                raise LedgerError(f"{error}; the spill file failed too ({second}): this answer is lost") from error
            raise

    async def close(self) -> None:
        """Finish the pending operations and end the thread.

        The ledger stays open.
        """
        self._hand_over()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        going = True
        while going:
            handed = [self._queue.get()]
            while sum(map(len, filter(None, handed))) < LARGEST_BATCH and not self._queue.empty():
                handed.append(self._queue.get())
            going = None not in handed
            if works := [work for works in handed if works is not None for work in works]:
                self._loop.call_soon_threadsafe(_deliver, self._commit(works))

    def _commit(self, works: list[Work]) -> list[tuple[asyncio.Future[object], object]]:
        outcomes: list[tuple[asyncio.Future[object], object]] = []
        try:
            with self.ledger.transaction() as ledger:
                outcomes = [(future, _result(operation, ledger)) for operation, future in works]
            if self._mark is not None:
                self._mark.follow(self.ledger)
        except Exception as error:  # noqa: BLE001 - whatever it is, each task must hear of it, or it waits for ever
            return [(future, error) for _, future in works]
        return outcomes


def spill(ledger: Path, entry: LedgerEntry, answer: LedgerAnswer) -> Path:
    """Write one answer beside the ledger, whole and on disk.

    Raises OSError.
    """
    folder = _spill_folder(ledger)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{entry.identity}-{entry.attempt}.json"
    raw = base64.b64encode(answer.raw).decode("ascii")
    kept = {"status": answer.status, "headers": dict(answer.headers), "generation_id": answer.generation_id, "raw": raw}
    with path.with_suffix(".tmp").open("w", encoding="ascii") as file:
        json.dump(kept, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".tmp").replace(path)
    return path


def read_spill(ledger: Ledger) -> int:
    """Bring spilled answers into the ledger; return their number.

    A file goes only once its answer is in the ledger: one whose request is not there is a paid answer all the same.
    Raises LedgerError.
    """
    paths = sorted(_spill_folder(ledger.path).glob("*.json"))
    for path in paths:
        try:
            kept = json.loads(path.read_text("ascii"))
            raw = base64.b64decode(kept["raw"], validate=True)
            answer = LedgerAnswer(int(kept["status"]), raw, dict(kept["headers"]), kept["generation_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{path} holds a paid answer and cannot be read ({error}): move it away") from error
        identity, _, attempt = path.stem.rpartition("-")
        with ledger.transaction():
            entry = ledger.find(identity, int(attempt)) if attempt.isdecimal() else None
            if entry is not None and entry.state is State.UNKNOWN and entry.answer is None:
                _take_in(ledger, entry, answer, path)
            elif entry is None or entry.answer != answer:
                state = "does not have" if entry is None else f"has as {entry.state}, with another answer or none"
                raise LedgerError(
                    f"{path} holds a paid answer to a request that {ledger.path} {state}: put back the ledger it"
                    " belongs to, or move the file away"
                )
        path.unlink()
    return len(paths)


def _take_in(ledger: Ledger, entry: LedgerEntry, answer: LedgerAnswer, path: Path) -> None:
    try:
        ledger.answer(entry, answer)
    except sqlite3.Error as error:  # larger than SQLite takes, from before answers had a limit
        raise LedgerError(
            f"{path} holds a paid answer of {len(answer.raw)} bytes that {ledger.path} refuses ({error}): move the file"
            " away. Its request stays unknown in the ledger, at its worst case"
        ) from error


def _spill_folder(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + ".spill")


def _result(operation: Operation, ledger: Ledger) -> object:
    # An operation checks before it writes, so one that refuses leaves nothing behind in the shared transaction.
    try:
        return operation(ledger)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - handed to the task that asked
        return error


def _deliver(outcomes: list[tuple[asyncio.Future[object], object]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
