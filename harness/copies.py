"""A copy of the whole tree with a small contract suite, for attacks on the gate as a user would run them.

Guarantees: it has a lock, a state folder and keys of its own, and hears nothing of this process's environment, so that
the user's own attestation is never touched.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from harness.trees import Tree
from pipeline.state import ROOT

SUITE = """
import pytest
from pipeline.digests import SUBJECTS

pytestmark = pytest.mark.contract

@pytest.mark.parametrize("n", [1, 2])
def test_twice(n):
    assert n + n == 2 * n

@pytest.mark.covers("system", route="local")
def test_the_code_of_this_tree_is_tested():
    assert "pipeline/" in SUBJECTS
"""
TEXTS = {
    "tests/contract/test_small.py": SUITE,
    "goldens/a.json": '{"provenance": {"recorded_at": "2026-11-01T00:00:00Z"}}',
    "cassettes/a.yaml": "provenance:\n  recorded_at: '2026-11-01T00:00:00Z'\n",
    "prompts.jsonl": '{"id": "a", "messages": [{"role": "user", "content": "hello"}]}\n',
}


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy, its developer's keys, and the interpreter that runs it."""

    root: Path
    keys: Path
    python: str = sys.executable

    @property
    def tree(self) -> Tree:
        return Tree(self.root, self.keys)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The interpreter at the copy's root, without what this process's environment says to Python and to us."""
        ours = ("PYTHON", "PYTEST", "DRAFTER_GATE", "HF_", "NOX")
        base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env = {**base, "DRAFTER_GATE_KEYS": str(self.keys), **environment}
        command = [self.python, *arguments]
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False, timeout=120)

    def contract(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """An attested run of the copy's suite."""
        return self.run("-m", "pytest", "tests/contract", "--attest", *options, **environment)

    def clone(self, folder: Path) -> Copy:
        """The same once more, to be changed."""
        shutil.copytree(self.root, folder / "tree", symlinks=True)
        shutil.copytree(self.keys, folder / "keys")
        return Copy(folder / "tree", folder / "keys", self.python)


def make_copy(folder: Path) -> Copy:
    """A copy whose lock is what is installed here, and whose REQUIRED lists its small suite; not attested yet."""
    copy = Copy(folder / "tree", folder / "keys")
    ignore = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for name in ("pipeline", "harness"):
        shutil.copytree(ROOT / name, copy.root / name, ignore=ignore)
    for name in ("noxfile.py", "pyproject.toml", "tests/conftest.py"):
        (copy.root / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, copy.root / name)
    lock = "".join(sorted(f"{found.name}=={found.version}\n" for found in importlib.metadata.distributions()))
    for name, text in {**TEXTS, "constraints.txt": lock}.items():
        (copy.root / name).parent.mkdir(exist_ok=True)
        (copy.root / name).write_text(text, "utf-8")
    copy.run("-m", "harness.required", "--write")
    return copy


def interpreter(folder: Path) -> tuple[str, Path]:
    """An interpreter that sees what is installed here, and its own site-packages before that."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(folder / "bin" / "python"), site
