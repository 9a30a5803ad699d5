"""What a committed kill table says of an attested run."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from harness.attestation.kills import held_kills, listed_promises
from harness.measures.teeth.mutants import named_mutants
from pipeline.base.paths import ROOT
from pipeline.gate.kills import KillTable, Share


def table(killers: dict[str, str], of: int) -> KillTable:
    shares = {"named": Share(len(killers), of, 0), "drawn": Share(190, 200, 0)}
    return KillTable("ab" * 32, date(2026, 11, 29), shares, {}, killers)


def test_a_kill_of_a_test_that_is_gone_does_not_count() -> None:
    here, gone = "tests/contract/test_a.py::test_a", "tests/contract/test_a.py::test_b"
    absent = "tests/contract/tokenizer_kimi/test_kimi_ids.py::test_c"
    killers = {"held": here, "lost": gone, "elsewhere": absent, "endless": "(does not end)", "unlisted": here}
    listed = ["held", "lost", "elsewhere", "endless", "new"]

    found = held_kills(table(killers, 5), listed, frozenset({here}), frozenset({"base"}))

    assert found is not None
    assert {"held", "elsewhere", "endless"} == set(found.killers)
    assert (Share(3, 5, 0), Share(190, 200, 0)) == (found.shares["named"], found.shares["drawn"])


def test_a_tree_without_a_table_has_no_kills() -> None:
    assert held_kills(None, ["held"], frozenset(), frozenset()) is None


def test_every_listed_promise_is_read(tmp_path: Path) -> None:
    assert [] == listed_promises(tmp_path)
    assert [mutant.promise for mutant in named_mutants()] == listed_promises(ROOT)
