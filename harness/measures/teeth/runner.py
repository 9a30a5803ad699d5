"""Judge mutants in copies of the tree, some at once.

Guarantees: a mutant is judged by the contract suite alone: by every test that executes the line, or where none does by
itself, every test that enters the file. The others cannot notice. Groups of real vocabularies judge where these are
found. A killing test is named. Bytecode is compared with its source by hash, so that no stale one runs; a run that
takes too much time or memory is killed and counts as a kill.
"""

from __future__ import annotations

import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.measures.teeth.mutants import Mutant, MutantError
from harness.measures.teeth.reach import PLUGIN, Reach

SUITE: Final = "tests/contract"
GUARDS: Final = ("--disable-socket", "--allow-unix-socket", "-p", "no:cacheprovider", "-q", "--no-header", "--tb=line")
PROCESSOR_SECONDS: Final = 240
"""Of a mutant's run: more than twice the whole suite. A busy machine does not use them up."""
PATIENCE: Final = 900.0
"""Seconds, for a run that waits for ever."""
MEMORY: Final = 6 * 2**30
FIRST: Final = 40
"""Tests of a first run. Most mutants fall to these, and the rest is run only where they do not."""
ENDLESS, BROKEN = "(does not end)", "(cannot be imported or collected)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one mutant.

    `killer`: the first test that failed, or what happened to the run; None where it survived. `tests`: those that
    were asked.
    """

    mutant: Mutant
    killer: str | None
    seconds: float
    tests: int


def copied(root: Path, folder: Path) -> Path:
    """Copy what git knows of the tree.

    With bytecode that is held to its source by hash.
    """
    listed = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiled, "pipeline", "harness", "tests"], cwd=folder, check=True)
    return folder


def measured(folder: Path) -> Reach:
    """Run the whole suite in `folder` and learn its reach.

    Raises MutantError where the unchanged suite fails.
    """
    command = [sys.executable, "-m", "pytest", SUITE, "-x", "-p", PLUGIN, *GUARDS, "--hypothesis-profile", "reach"]
    done = subprocess.run(command, cwd=folder, env=_environment(), check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise MutantError(f"the unchanged suite fails, so it judges nothing: {done.stdout.decode()[-2000:]}")
    return Reach.of(folder)


@dataclass(slots=True)
class Runner:
    """Copies of the tree, and which tests killed so far."""

    reach: Reach
    copies: Sequence[Path]
    killers: dict[str, Counter[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, mutants: Iterable[Mutant]) -> Iterator[Verdict]:
        """Yield verdicts as they come, one copy a thread."""
        free: queue.Queue[Path] = queue.Queue()
        for copy in self.copies:
            free.put(copy)

        def work(mutant: Mutant) -> Verdict:
            copy = free.get()
            try:
                return self._judged(mutant, copy)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(len(self.copies)) as pool:
            yield from pool.map(work, mutants)

    def _judged(self, mutant: Mutant, copy: Path) -> Verdict:
        """Run the likely tests, then the others that may notice."""
        start, path = time.monotonic(), copy / mutant.file
        source = path.read_text("utf-8")
        path.write_text(mutant.text, "utf-8")
        asked: list[str] = []
        try:
            for tests in self._rounds(mutant):
                asked += tests
                if (test := killer(copy, tests)) is not None:
                    with self._lock:
                        self.killers.setdefault(mutant.file, Counter())[test] += 1
                    return Verdict(mutant, test, time.monotonic() - start, len(asked))
            return Verdict(mutant, None, time.monotonic() - start, len(asked))
        finally:
            path.write_text(source, "utf-8")

    def _rounds(self, mutant: Mutant) -> Iterator[list[str]]:
        likely = self.reach.tests(mutant.file, mutant.line)
        with self._lock:
            known = [test for test, _ in self.killers.get(mutant.file, Counter()).most_common() if test in set(likely)]
        ordered = [*known, *(test for test in likely if test not in set(known))]
        yield from filter(None, (ordered[:FIRST], ordered[FIRST:]))


def killer(copy: Path, tests: Sequence[str]) -> str | None:
    """Run tests up to the first failure; return its id."""
    names = copy / ".tests"  # a file: hundreds of ids are too long for a command line
    names.write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", f"@{names}", "-x", *GUARDS, "-rfE", "--hypothesis-profile", "teeth"]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=_environment(),
            check=False,
            capture_output=True,
            timeout=PATIENCE,
            preexec_fn=_limited,
        )
    except subprocess.TimeoutExpired:
        return ENDLESS
    if done.returncode == 0:
        return None
    if done.returncode == -signal.SIGXCPU:
        return ENDLESS
    found = re.search(
        r"^(?:FAILED|ERROR) (tests\S+::.+?)(?: - .*)?$", done.stdout.decode(errors="replace"), re.MULTILINE
    )
    return found.group(1) if found else BROKEN


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))


def _environment() -> dict[str, str]:
    own = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    folders = os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep)
    named = os.pathsep.join(str(Path(folder).absolute()) for folder in folders if folder)  # a copy is run elsewhere
    return {**os.environ, **own, "DRAFTER_GATE_TOKENIZERS": named}
