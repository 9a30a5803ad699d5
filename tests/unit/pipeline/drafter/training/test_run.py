"""A training folder's life: stops, and what remains after them."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.fixtures.manifests import as_unsigned
from harness.fixtures.trainings import DrawnStates, equal, training, weights
from pipeline.drafter.training.checkpoints import newest
from pipeline.drafter.training.metrics import read_metrics
from pipeline.drafter.training.run import (
    COMPLETE,
    INTERRUPTED,
    STOPPED,
    Intervals,
    SessionEnd,
    held,
    opened,
    signals,
    train,
)
from pipeline.drafter.training.trainer import StepReport, Training
from pipeline.gate.attestation import Scope
from pipeline.gate.gate import Job, Kind, Permit
from pipeline.shards.manifest import FolderHeldError, ManifestError

SETTINGS = {"seed": 0}
HABITS = Intervals(checkpoint_every=2, validate_every=3, keep=2)
PERMIT = Permit(Job(Kind.TRAIN), Scope.DEV, 0, datetime.now(UTC) + timedelta(hours=1), "cd" * 32, {"pipeline/": "1"})


def run(
    found: Training, out: Path, habits: Intervals = HABITS, expires: datetime | None = None, kick: int | None = None
) -> SessionEnd:
    """Take all steps; Ctrl-C comes while step `kick` is shown.

    Steps count from 0.
    """

    def show(report: StepReport) -> None:
        if report.step == kick:
            signal.raise_signal(signal.SIGINT)

    with held(out, SETTINGS) as manifest, opened(out, manifest, PERMIT, habits, found.step) as folder:
        ending = train(found, folder, habits, out, {"config": {}}, show, expires)
        folder.end(ending, {"complete": ending.code == COMPLETE})
    return ending


def sessions(out: Path) -> list[str]:
    return [session["outcome"] for session in json.loads((out / "manifest.json").read_bytes())["sessions"]]


def test_to_its_end_it_leaves_metrics_checkpoints_and_outcome(tmp_path: Path) -> None:
    ending = run(training(epochs=5, held_out=0.4), tmp_path)

    assert (SessionEnd(COMPLETE), ["complete"]) == (ending, sessions(tmp_path))
    assert [1, 2, 3, 4, 5] == [line["step"] for line in read_metrics(tmp_path, "train")]
    assert [3, 5] == [line["step"] for line in read_metrics(tmp_path, "validation")]
    assert ["step-00000004", "step-00000005"] == sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_ctrl_c_lets_the_step_end_and_writes_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ending = run(training(epochs=9), tmp_path, kick=2)

    assert (INTERRUPTED, "interrupted after step 3; step-00000003 is written") == (ending.code, ending.message)
    assert (["interrupted"], "step-00000003") == (sessions(tmp_path), (newest(tmp_path) or tmp_path).name)
    assert "finishing this step" in capsys.readouterr().err


def test_a_second_ctrl_c_breaks_off_and_sigterm_does_not() -> None:
    with signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_attestation_that_expires_stops_it_with_a_checkpoint(tmp_path: Path) -> None:
    ending = run(training(), tmp_path, expires=datetime.now(UTC))

    assert STOPPED == ending.code
    assert ending.message.startswith("the attestation expired (run: nox -s contract) after step 0; step-00000000")


def test_what_is_no_number_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    """Five rows, one a step; the spoilt one is met somewhere, and what was learned before it stands."""
    states = DrawnStates([(5, 5)] * 5, spoilt=[2])
    found = training(states, tokens_a_batch=10)
    place = next(at for at in range(5) if found.sampler.step(at) == [(2,)])

    ending = run(found, tmp_path, Intervals(checkpoint_every=1))

    assert STOPPED == ending.code
    assert ending.message.startswith(f"the loss of step {place + 1} is not finite, and the step was not taken")
    assert "; its rows: 'row-2'. " in ending.message
    last = newest(tmp_path)
    assert ending.message.endswith(f"The last good checkpoint is {last}" if place else "There is no checkpoint yet")
    assert place == len(read_metrics(tmp_path, "train"))


def test_one_run_at_a_time_under_one_set_of_settings(tmp_path: Path) -> None:
    run(training(), tmp_path)

    with held(tmp_path, SETTINGS), pytest.raises(FolderHeldError), held(tmp_path, SETTINGS):
        pass
    with pytest.raises(ManifestError, match="was begun with seed 0 and is asked for 1"), held(tmp_path, {"seed": 1}):
        pass


def test_a_run_that_nobody_signed_needs_a_flag(tmp_path: Path) -> None:
    run(training(), tmp_path)
    as_unsigned(tmp_path)

    with pytest.raises(ManifestError, match="--accept-unsigned takes it"), held(tmp_path, SETTINGS):
        pass
    with held(tmp_path, SETTINGS, accept_unsigned=True) as manifest:
        assert not manifest.signed


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(ManifestError, match=r"holds thesis.txt but no manifest.json"), held(tmp_path, SETTINGS):
        pass
    assert ["thesis.txt"] == [path.name for path in tmp_path.iterdir()]


def test_an_error_in_the_middle_is_in_the_manifest(tmp_path: Path) -> None:
    def fail(_: StepReport) -> None:
        raise RuntimeError("the terminal is gone")

    with (
        pytest.raises(RuntimeError),
        held(tmp_path, SETTINGS) as manifest,
        opened(tmp_path, manifest, PERMIT, HABITS, 0) as folder,
    ):
        train(training(), folder, HABITS, tmp_path, {}, fail)

    assert ["stopped"] == sessions(tmp_path)


def test_a_continued_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    from pipeline.drafter.training.checkpoints import load

    whole, stopped, resumed = (training(tokens_a_batch=20, epochs=3) for _ in range(3))
    run(whole, tmp_path / "whole")
    run(stopped, tmp_path / "other", kick=4)
    place = newest(tmp_path / "other")
    assert place is not None
    resumed.restore(load(place))
    run(resumed, tmp_path / "other")

    lines = [[{**line, "tokens_a_second": 0} for line in read_metrics(tmp_path / name)] for name in ("whole", "other")]
    assert lines[0] == lines[1]
    assert equal(weights(whole), weights(resumed))
    assert ["interrupted", "complete"] == sessions(tmp_path / "other")
