"""The offline verbs by several processes: the same bytes, flat memory, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.views.roundtrip import RoundTrip, raw_of
from harness.views.view import PROFILES
from pipeline.base.processes import AHEAD, CHUNK_BYTES
from pipeline.formats.format import Parts
from pipeline.formats.registry import ROOT, open_format
from pipeline.records import Prompt

FORMAT = open_format("tiny-kimi")
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
IDS = FORMAT.assemble(Parts("So.", think_closed=True, body=("Yes.",), ended=True)).ids
TRIP = RoundTrip(PROFILES["siliconflow"], stream=False, tools_sent=False)
BODY = json.loads(raw_of(IDS, PROMPT, FORMAT.render(PROMPT), TRIP, FORMAT))
RECONSTRUCT = ("reconstruct", "--format", "tiny-kimi")
SECONDS = 120
PADDING = b"x" * 200


def answer(identity: str) -> bytes:
    return (
        json.dumps({"id": identity, "prompt": {"messages": list(PROMPT.messages)}, "response": BODY}).encode() + b"\n"
    )


def question(identity: str, content: str) -> bytes:
    return json.dumps({"id": identity, "messages": [{"role": "user", "content": content}]}).encode() + b"\n"


@contextmanager
def begun(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command line in a session of its own, its pipes open; ended in any case."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTER_GATE")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *args],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError, AttributeError):
                pipe.close()  # type: ignore[union-attr]  # None has none
        process.wait()


def children(process: subprocess.Popen[bytes], wanted: int) -> list[int]:
    """The process ids of its workers, once all are there."""
    place = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return eventually(lambda: [int(child) for child in place.read_text().split()], wanted)


def eventually(look: Callable[[], list[int]], wanted: int) -> list[int]:
    """What is seen once there are as many as wanted."""
    limit = time.monotonic() + SECONDS
    while len(seen := look()) != wanted:
        assert time.monotonic() < limit, seen
        time.sleep(0.02)
    return seen


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def run(*args: str, stdin: bytes) -> tuple[int, bytes, bytes]:
    with begun(*args) as process:
        out, err = process.communicate(stdin, timeout=SECONDS)
        return process.returncode, out, err


MUCH = answer("r") * (5 * CHUNK_BYTES // 2 // len(answer("r")))
"""Work for two, and input that waits; it is read before any result is written, so nobody need read the results."""

# The same answers


def test_more_workers_give_the_same_bytes() -> None:
    """Refused lines keep their numbers, blank ones are passed over, a line longer than a chunk is one line."""
    lines = [answer(f"r{i}") if i % 5 else b"no\n" for i in range(3 * CHUNK_BYTES // len(answer("r")))]
    lines[10:10] = [b"\n", question("long", "x" * CHUNK_BYTES), b"[1]\n"]
    whole = b"".join(lines) + b"the last line has no end"
    alone, three = run(*RECONSTRUCT, stdin=whole), run(*RECONSTRUCT, "--workers", "3", stdin=whole)

    assert (0, b"") == (alone[0], alone[2])
    assert len(lines) == len(alone[1].splitlines())
    assert alone == three


def test_prompts_are_rendered_by_workers_too() -> None:
    whole = b"".join(question(f"r{i}", "hi") for i in range(3 * CHUNK_BYTES // len(question("r", "hi"))))

    assert run("render", "--format", "tiny-kimi", stdin=whole) == run(
        "render", "--format", "tiny-kimi", "--workers", "2", stdin=whole
    )


def test_no_lines_are_no_results() -> None:
    assert (0, b"", b"") == run(*RECONSTRUCT, "--workers", "2", stdin=b"")


@pytest.mark.parametrize("number", ["0", "-1", "two", ""])
def test_what_is_no_number_of_processes_is_exit_2(number: str) -> None:
    status, out, err = run(*RECONSTRUCT, f"--workers={number}", stdin=b"")

    assert (2, b"") == (status, out)
    assert b"no number of processes" in err


# Memory


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_does_not_grow_with_the_input(workers: int) -> None:
    few, many = (peak(lines, workers) for lines in (20_000, 200_000))

    assert len(few) == len(many) == (1 if workers == 1 else 1 + workers)
    assert sum(many) < sum(few) + 2 * AHEAD * CHUNK_BYTES * (1 + workers)


def peak(lines: int, workers: int) -> list[int]:
    """The largest memory in bytes that each process had while so many lines went through, lazily written."""
    seen: list[int] = []
    with begun(*RECONSTRUCT, "--workers", str(workers)) as process:
        assert process.stdin is not None
        reader = threading.Thread(target=lambda: seen.append(sum(1 for _ in process.stdout or ())))
        reader.start()
        for block in blocks(lines):
            process.stdin.write(block)
        process.stdin.flush()
        hired = children(process, workers) if workers > 1 else []
        found = [high_water(pid) for pid in (process.pid, *hired)]
        process.stdin.close()
        reader.join()
        assert (0, [lines]) == (process.wait(), seen)
    return found


def blocks(lines: int) -> Iterator[bytes]:
    for start in range(0, lines, 100):
        yield b"".join(
            answer(f"r{i}") if i % 20 == 0 else b"no %d %s\n" % (i, PADDING) for i in range(start, start + 100)
        )


def high_water(pid: int) -> int:
    """VmHWM, which begins anew at exec; the maximum that wait4 gives does not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


# Ends


@contextmanager
def under_way() -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A run with two workers and some of its input, which goes on."""
    with begun(*RECONSTRUCT, "--workers", "2") as process:
        assert process.stdin is not None
        process.stdin.write(MUCH)
        process.stdin.flush()
        yield process, children(process, 2)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """The exit status and stderr, its output read to the end."""
    _, err = process.communicate(timeout=SECONDS)
    return process.returncode, err


def none_is_left(workers: list[int]) -> bool:
    return [] == eventually(lambda: [pid for pid in workers if not is_gone(pid)], 0)


def test_ctrl_c_leaves_no_process_behind() -> None:
    """A terminal sends it to the workers too."""
    with under_way() as (process, workers):
        os.killpg(process.pid, signal.SIGINT)

        assert (130, b"interrupted\n") == ended(process)
        assert all(is_gone(pid) for pid in workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_parent_leaves_no_worker_behind(number: signal.Signals) -> None:
    with under_way() as (process, workers):
        process.send_signal(number)

        assert (-number, b"") == ended(process)
        assert none_is_left(workers)


def test_a_reader_that_leaves_ends_all() -> None:
    with under_way() as (process, workers):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.close()

        assert 141 == process.wait(SECONDS)
        assert b"" == (process.stderr.read() if process.stderr else None)
        assert all(is_gone(pid) for pid in workers)


def test_a_worker_that_dies_is_exit_1_and_no_missing_line() -> None:
    with under_way() as (process, workers):
        os.kill(workers[0], signal.SIGKILL)
        out, err = process.communicate(MUCH, timeout=SECONDS)

        assert (1, 1) == (process.returncode, err.count(b"\n"))
        assert err.startswith(b"error: a worker process died")
        assert all(json.loads(line)["status"] == "accepted" for line in out.splitlines())
        assert is_gone(workers[1])


def test_a_worker_that_fails_is_named() -> None:
    """In a process of its own: a fork of a test runner with threads is a warning in later Pythons."""
    code = """
from pipeline.base.processes import WorkerError, map_lines
def work(lines, first):
    for number, line in enumerate(lines, first):
        yield line if number < 3 else str(1 // 0)
try:
    list(map_lines([b"a\\n", b"b\\n", b"c\\n"], work, 2))
except WorkerError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ("a worker process failed (ZeroDivisionError: integer division or modulo by zero)\n", "") == (
        done.stdout,
        done.stderr,
    )
