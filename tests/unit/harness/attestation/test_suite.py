"""The suite's private copy: which bytes and which environment it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.attestation import suite
from harness.fixtures.trees import Tree, small_tree
from pipeline.gate.digests import tree_digests


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return small_tree(tmp_path)


def test_the_copy_has_the_hashed_bytes_and_no_others(tree: Tree, tmp_path: Path) -> None:
    (tree.root / "notes.md").write_text("no subject")
    (tree.root / "pipeline" / "__pycache__").mkdir()
    (tree.root / "pipeline" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"stale")
    copy = tmp_path / "copy"

    suite.copy_subjects(tree.root, copy)

    assert tree_digests(tree.root) == tree_digests(copy)
    assert not (copy / "notes.md").exists()
    assert not (copy / "pipeline" / "__pycache__").exists()


def test_python_sees_none_of_its_own_variables(tmp_path: Path) -> None:
    outer = {"PYTHONPATH": "x", "PYTHONPYCACHEPREFIX": "y", "PYTHONOPTIMIZE": "1", "PATH": "/bin", "HOME": "/h"}

    found = suite.environment(outer, tmp_path)

    assert {"PATH", "HOME", "DRAFTER_GATE_STATE", "DRAFTER_GATE_SUITE_COPY"} == found.keys()
    assert str(tmp_path) == found["DRAFTER_GATE_SUITE_COPY"]


def test_folders_are_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite runs elsewhere, where a relative folder is another one."""
    monkeypatch.chdir(tmp_path)
    joined = os.pathsep.join(["a", "/b"])

    found = suite.environment({"DRAFTER_GATE_TOKENIZERS": joined, "DRAFTER_GATE_KEYS": "keys"}, tmp_path / "copy")

    assert os.pathsep.join([str(tmp_path / "a"), "/b"]) == found["DRAFTER_GATE_TOKENIZERS"]
    assert str(tmp_path / "keys") == found["DRAFTER_GATE_KEYS"]


@pytest.mark.parametrize("change", ["unhashed", "missing"])
def test_a_tree_that_cannot_be_attested_loses_the_old_one(
    change: str, tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tree.attestation.parent))
    monkeypatch.setattr(suite, "ROOT", tree.root)
    if change == "unhashed":
        (tree.root / "conftest.py").write_text("")
    else:
        (tree.root / "constraints.txt").unlink()

    assert 1 == suite.main([])
    assert not tree.attestation.exists()
    assert "attestation: not written" in capsys.readouterr().out
