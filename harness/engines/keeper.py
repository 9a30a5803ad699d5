"""Run one command, and end every process that it started.

`python keeper.py PIPE COMMAND…`, in a session of its own.

Guarantees: no process of the command remains once the other end of PIPE closes (its holder ended, even by SIGKILL),
once the command ends, or after SIGTERM or SIGINT. That includes processes that left the session or lost their parent.
Needs Linux and the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 8.0
"""What an engine is given to end by itself, before it is killed."""
LOOK_SECONDS = 0.05


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(root: int) -> list[int]:
    """Return the living processes below `root`, zombies excluded."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _parent(entry)) is not None:
            below.setdefault(found, []).append(int(entry.name))
    alive, waiting = list[int](), [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        alive += children
        waiting += children
    return alive


def _parent(entry: Path) -> int | None:
    """Return a living process's parent, None for a zombie."""
    try:
        # The name, in brackets, may hold anything.
        state, parent = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(parent)


def end_descendants(grace: float = GRACE_SECONDS) -> None:
    """End every process below this one: SIGTERM, then SIGKILL.

    SIGKILL follows after `grace` seconds. Returns once this process has no child: every orphan below it became its own.
    """
    _signal(descendants(os.getpid()), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while _reap():
        if time.monotonic() > deadline:
            _signal(descendants(os.getpid()), signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _reap() -> bool:
    """Reap ended children and orphans; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def keep(pipe: int, command: list[str]) -> int:
    """Run the command until it or the pipe ends.

    Returns the command's exit status; 0 where it had not ended by itself.
    """
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: asked.append(got))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)  # noqa: PLW1509 - no threads here
        while not asked and child.poll() is None and not select.select([pipe], [], [], LOOK_SECONDS)[0]:
            pass
        ended = child.poll()
    finally:
        end_descendants()
    return 0 if ended is None else ended


def _die_with_parent() -> None:
    """Kill the command if the keeper itself is killed."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
