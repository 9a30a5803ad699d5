"""Work shared out to several processes: jobs out, answers back in the order of the jobs; of lines, chunks of them.

Guarantees: answers come in the order of the jobs, whichever worker was first; memory is bounded by the jobs in
flight, however many there are; no worker outlives the work, whether it ended, failed, was interrupted or was killed.
A worker that dies or fails is an error, never a missing answer. Linux: workers are forked, so they share a vocabulary.
"""

from __future__ import annotations

import gc
import io
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

CHUNK_BYTES = 96 * 1024
"""Large against the cost of a message, and small enough that malloc keeps its copies: from 128 KiB on, each is made of
fresh pages, which cost a tenth of the work. A longer line is a chunk of its own."""

AHEAD = 4
"""Chunks a worker that may be under way or wait for an earlier one."""

Work: TypeAlias = Callable[[Iterable[bytes], int], Iterable[bytes]]
"""Lines, and the number of the first of them, to lines."""

Chunk: TypeAlias = tuple[int, bytes]

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class WorkerError(Exception):
    """A worker that ended or failed before its work was answered."""


def map_lines(lines: Iterable[bytes], work: Work, workers: int) -> Generator[bytes, None, None]:
    """What `work` makes of the lines, in order; in this process where there is one worker. Close it to stop early."""
    if workers == 1:
        yield from work(lines, 1)
        return
    yield from map_in_order(_chunks(lines), partial(_answered, work), workers)


def map_in_order(jobs: Iterable[Job], answer: Callable[[Job], Answer], workers: int) -> Generator[Answer, None, None]:
    """What `answer` makes of each job, in order; in this process where there is one worker. Close it to stop early."""
    if workers == 1:
        yield from map(answer, jobs)
        return
    with _crew(answer, workers) as crew:
        yield from _in_order(iter(jobs), crew)


def _answered(work: Work, chunk: Chunk) -> bytes:
    first, lines = chunk
    return b"".join(work(io.BytesIO(lines), first))


def _chunks(lines: Iterable[bytes]) -> Iterator[Chunk]:
    """Whole lines, joined, and the number of the first of them."""
    first, held, size = 1, list[bytes](), 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield first, b"".join(held)
            first, held, size = first + len(held), [], 0
    if held:
        yield first, b"".join(held)


def _in_order(jobs: Iterator[Job], crew: Sequence[Connection]) -> Iterator[Answer]:
    """Each job to the first idle worker; a worker has one at a time, so neither side ever waits for the other."""
    idle, busy = list(crew), dict[Connection, int]()
    done: dict[int, Answer] = {}
    due, sent, ahead = 0, 0, next(jobs, None)
    while ahead is not None or busy:
        while ahead is not None and idle and sent - due < AHEAD * len(crew):
            connection = idle.pop()
            _send(connection, ahead)
            busy[connection] = sent
            sent, ahead = sent + 1, next(jobs, None)
        for ready in wait(list(busy)):
            if isinstance(ready, Connection):
                done[busy.pop(ready)] = _received(ready)
                idle.append(ready)
        while due in done:
            yield done.pop(due)
            due += 1


def _send(connection: Connection, job: object) -> None:
    with suppress(BrokenPipeError):  # a worker that died says so when its answer is read
        connection.send(job)


def _received(connection: Connection) -> Any:  # noqa: ANN401 — what the crew's own function returned
    try:
        answer, failure = connection.recv()
    except (EOFError, ConnectionResetError):
        raise WorkerError("a worker process died before its work was answered (killed, or out of memory)") from None
    if failure is not None:
        raise WorkerError(f"a worker process failed ({failure})")
    return answer


@contextmanager
def _crew(answer: Callable[[Job], Answer], workers: int) -> Iterator[Sequence[Connection]]:
    """Workers that stand by, and end with this block."""
    context = get_context("fork")
    ours: list[Connection] = []
    hired: list[BaseProcess] = []
    gc.freeze()  # what is shared stays shared: a worker's collector would write to every page of the vocabulary
    try:
        for _ in range(workers):
            mine, theirs = context.Pipe()
            ours.append(mine)
            hired.append(context.Process(target=_serve, args=(answer, theirs, tuple(ours)), daemon=True))
            with _no_interrupt():
                hired[-1].start()
            theirs.close()
        yield ours
    finally:
        gc.unfreeze()
        for connection in ours:
            connection.close()
        for process in hired:
            _end(process)


def _end(process: BaseProcess) -> None:
    if process.pid is not None:
        process.terminate()
        process.join()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """A child begun here never sees Ctrl-C, which a terminal sends to all: its parent ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(answer: Callable[[Job], Answer], connection: Connection, others: Sequence[Connection]) -> None:
    """Answer jobs until the parent closes its end, which it also does by dying: so no copy of that end may stay."""
    for other in others:
        other.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(_tried(answer, connection.recv()))


def _tried(answer: Callable[[Job], Answer], job: Job) -> tuple[Answer | None, str | None]:
    try:
        return answer(job), None
    except Exception as error:  # noqa: BLE001 — the parent says it, as it says its own failures
        return None, f"{type(error).__name__}: {error}"
