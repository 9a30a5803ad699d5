"""Work shared out to processes, with the results in order.

Guarantees: results come in the order of the jobs, whichever worker was first. Memory is bounded by the jobs in flight,
however many there are. No worker outlives the work, whether it ended, failed, was interrupted or was killed. A worker
that dies or fails is an error, never a missing result. Linux only: workers are forked, so they share a vocabulary.
"""

from __future__ import annotations

import gc
import io
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

CHUNK_BYTES = 96 * 1024
"""Large against the cost of a message, and small enough that malloc keeps its copies: from 128 KiB on, each is made of
fresh pages, which cost a tenth of the work. A longer line is a chunk of its own."""

AHEAD = 4
"""Jobs per worker that may be in work or wait for an earlier one."""

Work: TypeAlias = Callable[[Iterable[bytes], int], Iterable[bytes]]
"""From lines, and the number of the first of them, to lines."""

Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkerError(Exception):
    """A worker died or failed before its result came."""


def map_lines(lines: Iterable[bytes], work: Work, workers: int) -> Generator[bytes, None, None]:
    """Yield what `work` makes of the lines, in order.

    Runs in this process where there is one worker. Close the generator to stop early. Raises WorkerError.

    >>> list(map_lines([b"a", b"b"], lambda lines, first: (line.upper() for line in lines), 1))
    [b'A', b'B']
    """
    if workers == 1:
        yield from work(lines, 1)
        return
    yield from map_in_order(_chunks(lines), lambda chunk: b"".join(work(io.BytesIO(chunk[1]), chunk[0])), workers)


def _chunks(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of a first line, and lines joined."""
    first, held, size = 1, list[bytes](), 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield first, b"".join(held)
            first, held, size = first + len(held), [], 0
    if held:
        yield first, b"".join(held)


def map_in_order(jobs: Iterable[Job], function: Callable[[Job], Result], workers: int) -> Generator[Result, None, None]:
    """Yield what `function` makes of each job, in order.

    Runs in this process where there is one worker. Close the generator to stop early. Raises WorkerError.
    """
    if workers == 1:
        yield from map(function, jobs)
        return
    with _forked(function, workers) as connections:
        waiting = iter(jobs)
        idle, busy = list(connections), dict[Connection, int]()
        done: dict[int, Result] = {}
        due, sent, ahead = 0, 0, next(waiting, None)
        while ahead is not None or busy:
            # One job a worker at a time, so neither side ever waits for the other to read.
            while ahead is not None and idle and sent - due < AHEAD * len(connections):
                connection = idle.pop()
                with suppress(BrokenPipeError):  # a worker that died says so when its result is read
                    connection.send(ahead)
                busy[connection] = sent
                sent, ahead = sent + 1, next(waiting, None)
            for ready in wait(list(busy)):
                if isinstance(ready, Connection):
                    done[busy.pop(ready)] = _received(ready)
                    idle.append(ready)
            while due in done:
                yield done.pop(due)
                due += 1


def _received(connection: Connection) -> Any:  # noqa: ANN401 — what the workers' own function returned
    try:
        result, failure = connection.recv()
    except (EOFError, ConnectionResetError):
        raise WorkerError("a worker process died before its work was answered (killed, or out of memory)") from None
    if failure is not None:
        raise WorkerError(f"a worker process failed ({failure})")
    return result


@contextmanager
def _forked(function: Callable[[Job], Result], workers: int) -> Iterator[Sequence[Connection]]:
    """Fork workers that end with this block; yield their connections."""
    context = get_context("fork")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    gc.freeze()  # what is shared stays shared: a worker's collector would write to every page of the vocabulary
    try:
        for _ in range(workers):
            mine, theirs = context.Pipe()
            connections.append(mine)
            processes.append(context.Process(target=_serve, args=(function, theirs, tuple(connections)), daemon=True))
            # A terminal sends Ctrl-C to all; a worker never sees it, since its parent ends it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                processes[-1].start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        yield connections
    finally:
        gc.unfreeze()
        for connection in connections:
            connection.close()
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _serve(function: Callable[[Job], Result], connection: Connection, others: Sequence[Connection]) -> None:
    """Answer jobs until the parent closes its end or dies.

    The parent's ends that this process inherited are closed first: a copy that stayed would keep the pipe open.
    """
    for other in others:
        other.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job = connection.recv()
            try:
                reply: tuple[Result | None, str | None] = (function(job), None)
            except Exception as error:  # noqa: BLE001 — the parent reports it like its own failures
                reply = (None, f"{type(error).__name__}: {error}")
            connection.send(reply)
