"""Revert past fixes, and see which the suite notices.

    python -m harness teeth --reverted N

Guarantees: a fix is a commit, no merge, that changes code of `pipeline` and tests together. Its change to `pipeline` is
taken back in a copy of the tree, where it still applies, and the contract suite of today judges the copy. What the
suite cannot import any more is noticed too, and counted apart: no test had to look.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Final

from harness.measures.teeth.runner import BROKEN, SUITE, copied, killer
from pipeline.base.paths import ROOT
from pipeline.base.screen import show

CODE, TESTS = "pipeline/", "tests/"
SURVIVED: Final = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Fix:
    """A commit and its change to `pipeline`."""

    commit: str
    subject: str
    patch: bytes


def fixes(last: int, root: Path = ROOT) -> Iterator[Fix]:
    """Yield the last fixes, the newest first."""
    log = _git(root, "log", "--no-merges", "--format=%x00%H %s", "--name-only", "HEAD").decode()
    for entry in log.split("\0")[1:]:
        head, *names = entry.strip().splitlines()
        commit, _, subject = head.partition(" ")
        if not {CODE, TESTS} <= {name.partition("/")[0] + "/" for name in names}:
            continue
        last -= 1
        if last < 0:
            return
        yield Fix(commit, subject, _git(root, "show", "--format=", "--binary", commit, "--", f"{CODE}*.py"))


def judge_fixes(last: int, workers: int, root: Path = ROOT) -> Counter[str]:
    """Print a line a fix; count the fates."""
    fates: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copies.put(copied(root, Path(folder) / str(number)))

        def work(fix: Fix) -> tuple[Fix, str]:
            copy = copies.get()
            try:
                return fix, _fate(fix, copy)
            finally:
                copies.put(copy)

        for fix, fate in pool.map(work, list(fixes(last, root))):
            show(f"{fix.commit[:9]} {fix.subject[:90]}: {fate}")
            fates[fate if fate in {SURVIVED, BROKEN, "does not apply"} else "noticed by a test"] += 1
    return fates


def _fate(fix: Fix, copy: Path) -> str:
    if not fix.patch.strip() or not _applied(copy, fix.patch, "-R"):
        return "does not apply"
    try:
        return killer(copy, [SUITE]) or SURVIVED
    finally:
        if not _applied(copy, fix.patch):
            raise RuntimeError(f"the copy cannot be put back after {fix.commit}")


def _applied(copy: Path, patch: bytes, *options: str) -> bool:
    """Apply a patch, whole or not at all."""
    command = ["git", "apply", *options, "-"]
    return not subprocess.run(command, cwd=copy, input=patch, capture_output=True, check=False).returncode


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout
