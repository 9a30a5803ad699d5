"""`python -m pipeline train`, where it needs no target: who of several processes says what went wrong."""

from __future__ import annotations

import argparse

import pytest

from pipeline.cli import train as train_cli
from pipeline.drafter.states.manifest import StoreError
from pipeline.drafter.target.files import TargetError
from pipeline.drafter.training import distributed


def run(monkeypatch: pytest.MonkeyPatch, error: Exception, *, first: bool) -> int:
    def fails(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(train_cli, "_run_train", fails)
    monkeypatch.setattr(distributed, "is_first", lambda: first)
    return train_cli.run_train(argparse.Namespace())


def test_what_one_process_alone_can_meet_it_says_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first process hears of it as a connection that broke."""
    assert train_cli.FAILED == run(monkeypatch, StoreError("states-00000 was changed (row 'r13')"), first=False)

    assert "error: states-00000 was changed (row 'r13')\n" == capsys.readouterr().err


def test_what_all_processes_meet_the_first_says_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_cli.FAILED == run(monkeypatch, TargetError("no target"), first=False)
    assert "" == capsys.readouterr().err

    with pytest.raises(TargetError, match="no target"):
        run(monkeypatch, TargetError("no target"), first=True)
