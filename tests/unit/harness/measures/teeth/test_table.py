"""The kill table: written as the gate reads it, and a page for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measures.teeth import table
from harness.measures.teeth.mutants import Mutant
from harness.measures.teeth.table import Outcome
from pipeline.base.paths import ROOT
from pipeline.gate.kills import KillTable, Share, read_kills

GATE, TEST = "pipeline/gate/gate.py", "tests/contract/gate/test_gate.py::test_a[x|y]"


def mutant(name: str, promise: str = "") -> Mutant:
    return Mutant(name, GATE, 7, "", promise)


NAMED = [Outcome(mutant("Money is capped", "Money is capped"), TEST), Outcome(mutant("Time too", "Time too"), None)]
DRAWN = [Outcome(mutant("gate:AddNot:0"), TEST), *(Outcome(mutant(f"gate:AddNot:{n}"), None) for n in (1, 2))]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table, "equivalents", lambda: {"gate:AddNot:2": "both are the same set"})
    for folder in ("tests/contract", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    table.write(NAMED, DRAWN, {GATE: "ab" * 32}, tmp_path)
    return tmp_path


def test_what_is_written_is_what_the_gate_reads(written: Path) -> None:
    found = read_kills(written)

    assert isinstance(found, KillTable)
    assert {"named": Share(1, 2, 0), "drawn": Share(1, 2, 1)} == found.shares
    assert ({GATE: "ab" * 32}, {"Money is capped": TEST}) == (found.files, found.killers)


def test_the_page_says_what_holds_each_promise(written: Path) -> None:
    page = (written / "docs/promises.md").read_text()

    assert "| Money is capped | `gate/test_gate.py::test_a[x\\|y]` |" in page
    assert "| Time too | nothing |" in page


def test_the_committed_table_is_whole() -> None:
    assert isinstance(read_kills(ROOT), KillTable)
