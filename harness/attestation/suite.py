"""Run and attest the contract suite on a private copy.

    python -m harness contract [PYTEST OPTIONS]

Guarantees: what is attested is what ran. The suite runs on a copy of the hashed bytes that nobody else writes to, under
an environment without Python's variables, and the attestation has the copy's digests. So a tree that changes meanwhile,
or changes and changes back, is not attested by it. The old attestation goes, whatever becomes of the run; a run that
passes and signs nothing is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from harness.attestation import invocation
from pipeline.base.paths import ROOT, state_dir
from pipeline.base.screen import say, show
from pipeline.gate.attestation import attestation_path
from pipeline.gate.digests import IGNORED, SUBJECTS, DigestError, tree_digests
from pipeline.gate.gate import unhashed_objections
from pipeline.records import PROVE, Objection

COPY: Final = "DRAFTER_GATE_SUITE_COPY"
"""Where the suite's copy lies; an attested run is of this folder."""
FOLDERS: Final = ("DRAFTER_GATE_TOKENIZERS", "DRAFTER_GATE_KEYS", "DRAFTER_GATE_SHARED")
REPORTS: Final = ("--junitxml", "--junit-xml")
FAILED: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy, run, and return pytest's exit status.

    1 where it passes and nothing is attested.
    """
    options = list(sys.argv[1:] if arguments is None else arguments)
    before = _stamp()
    if problems := list(_objections(ROOT)):
        attestation_path().unlink(missing_ok=True)
        show("attestation: not written", *(f"objection: {problem}" for problem in problems))
        return FAILED
    with tempfile.TemporaryDirectory(prefix="drafter-gate-suite-") as folder:
        copy = Path(folder).resolve() / "tree"
        copy_subjects(ROOT, copy)
        command = [sys.executable, "-s", "-m", "pytest", "tests/contract", "--attest", *map(_absolute, options)]
        done = subprocess.run(command, cwd=copy, env=environment(os.environ, copy), check=False)
    if _stamp() == before:  # the plugin did not even start: what stands there is of an earlier run
        attestation_path().unlink(missing_ok=True)
    if not done.returncode and not attestation_path().exists():
        say(f"error: the suite passed and nothing was attested. Run: {PROVE}, without other options")
        return FAILED
    return done.returncode


def _objections(root: Path) -> Iterator[Objection]:
    """Yield what the copy leaves out and shuts the gate."""
    yield from invocation.process_objections(root)
    yield from unhashed_objections(root)
    try:
        tree_digests(root)
    except DigestError as error:
        yield Objection(str(error), PROVE)


def copy_subjects(root: Path, copy: Path) -> None:
    """Copy all that the digests cover, and nothing else."""
    for name in SUBJECTS:
        target = copy / name.rstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            shutil.copytree(root / name, target, ignore=shutil.ignore_patterns(*IGNORED))
        else:
            shutil.copy2(root / name, target)


def environment(outer: Mapping[str, str], copy: Path) -> dict[str, str]:
    """Return the suite's environment.

    Python's own variables are left out (a bytecode cache of elsewhere among them), and folders are named in full.
    """
    kept = {name: value for name, value in outer.items() if not name.startswith("PYTHON")}
    for name in FOLDERS:
        if value := kept.get(name):
            kept[name] = os.pathsep.join(os.path.abspath(folder) for folder in value.split(os.pathsep))  # noqa: PTH100 - "" stays in
    return kept | {"DRAFTER_GATE_STATE": str(state_dir().absolute()), COPY: str(copy)}


def _absolute(option: str) -> str:
    """Return a report's path in full: the suite runs elsewhere."""
    name, equals, path = option.partition("=")
    return f"{name}={Path(path).absolute()}" if equals and name in REPORTS else option


def _stamp() -> tuple[int, int] | None:
    try:
        found = attestation_path().stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
