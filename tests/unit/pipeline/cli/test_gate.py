"""`gate status`: red first, each with its command, and the same as JSON."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.trees import CLEAN, NOW, Tree, small_tree
from pipeline.cli import gate as gate_cli
from pipeline.cli.gate import add_parser, run, status
from pipeline.gate import gate


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree with an odd name, whose state and keys are its own."""
    tree = small_tree(tmp_path / "[red]odd[/INST]")
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tree.attestation.parent))
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.keys))
    return tree


def answer(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return run(parser.parse_args(["gate", "status", *arguments]))


def test_every_reason_of_the_gate_is_listed_with_its_command(tree: Tree) -> None:
    """This process is not isolated, and nothing is attested."""
    tree.attestation.unlink()

    found = status(tree.root)

    assert found["open"] is False
    assert isinstance(found["objections"], list)
    whats = [str(entry["what"]) for entry in found["objections"] if isinstance(entry, dict)]
    assert any("not started isolated" in what for what in whats)
    assert "there is no attestation at" in whats[-1]
    assert all(isinstance(entry, dict) and entry["mend"] for entry in found["objections"])


def test_a_shut_gate_prints_reasons_first_and_brackets_whole(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.attestation.unlink()
    monkeypatch.setattr(gate_cli, "status", lambda: status(tree.root))

    code = answer()
    lines = capsys.readouterr().out.splitlines()

    assert gate.SHUT == code
    assert lines[0].startswith("shut  ")
    assert all(line.startswith("      Run: ") for line in lines[1::2])
    assert any(f"there is no attestation at {tree.attestation}" in line for line in lines)


def test_json_is_what_status_says(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = status(tree.root)
    monkeypatch.setattr(gate_cli, "status", lambda: found)

    code = answer("--json")

    assert gate.SHUT == code
    assert found == json.loads(capsys.readouterr().out)


def test_a_job_that_is_not_allowed_says_why(tree: Tree) -> None:
    found = status(tree.root)

    jobs = found["jobs"]
    assert isinstance(jobs, list)
    assert 4 == len(jobs)
    assert all(isinstance(job, dict) and not job["allowed"] and job["objections"] for job in jobs)


def test_what_shuts_one_job_alone_comes_after_what_is_allowed(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a good tree, in a clean interpreter."""
    tree.attest(groups=["base", "drafter"])
    monkeypatch.setattr("pipeline.gate.environment.observe", lambda: replace(CLEAN, search_path=(str(tree.root),)))
    found = status(tree.root, NOW)
    monkeypatch.setattr(gate_cli, "status", lambda: found)

    code = answer()
    lines = capsys.readouterr().out.splitlines()

    assert 0 == code
    assert lines[0].startswith("allowed generate emulator, generate local, train")
    shut, mend = lines[-2:]
    way = "openrouter/PROVIDER MODEL"
    assert f"generate {way}: shut  the attestation has no live recording of {way}" == shut
    assert mend.startswith("      Run: nox -s cassettes -- --live --route openrouter/PROVIDER --model MODEL")


def test_a_ledger_that_cannot_be_read_shuts_paid_jobs(tree: Tree) -> None:
    (tree.attestation.parent / "ledger.sqlite").write_text("no database")

    jobs = status(tree.root)["jobs"]
    assert isinstance(jobs, list)
    paid = jobs[-1]
    assert isinstance(paid, dict)

    assert "generate openrouter/PROVIDER MODEL" == paid["job"]
    assert "what was spent today is not known" in str(paid["objections"])
    assert "DRAFTER_GATE_STATE" not in str(paid["objections"])
