"""Figures by hand, the file that keeps them, and the one interface to trackers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.drafter.metrics import (
    METRICS,
    MetricsError,
    MetricsFile,
    figures_of,
    flat,
    read_metrics,
    simulated_acceptance,
    tracker_named,
)

PACKAGE = """
import json, pathlib
told = pathlib.Path(__file__).with_name("told.jsonl")
def note(*what):
    with told.open("a") as file: file.write(json.dumps(what) + "\\n")
def init(project, name, config): note("init", project, name, config)
def log(numbers, step): note("log", step, numbers)
def finish(): note("finish")
"""


def test_simulated_acceptance_is_the_sum_of_running_products() -> None:
    assert pytest.approx(0.5 + 0.5 * 0.4 + 0.5 * 0.4 * 0.25) == simulated_acceptance([0.5, 0.4, 0.25])
    assert 0.0 == simulated_acceptance([])


def test_a_step_without_rows_ends_the_simulated_acceptance() -> None:
    assert 0.5 == simulated_acceptance([0.5, None, 0.9])


def test_losses_are_means_over_their_divisors_and_shares_over_rows() -> None:
    figures = figures_of([6.0, 4.0, 0.0], [2.0, 1.0, 0.0], [4.0, 2.0, 0.0], [3.0, 2.0, 0.0], decay=0.5)

    assert ((2.0, 2.0, None), (0.5, 0.5, None), (4, 2, 0)) == (figures.loss, figures.accuracy, figures.rows)
    assert (3.0, 0.75) == (figures.total, figures.acceptance)


def test_a_run_that_goes_on_takes_off_the_lines_of_steps_that_come_again(tmp_path: Path) -> None:
    first = MetricsFile(tmp_path, steps_done=0)
    for step in (1, 2, 3):
        first.write(step, "train", {"loss": step / 3})
    first.close()
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 4, "kin')  # a kill in the middle of a line

    second = MetricsFile(tmp_path, steps_done=2)
    second.write(3, "validation", {"loss": 0.5})
    second.close()

    assert [(1, 1 / 3), (2, 2 / 3), (3, 0.5)] == [(line["step"], line["loss"]) for line in read_metrics(tmp_path)]
    assert [3] == [line["step"] for line in read_metrics(tmp_path, "validation")]


def test_what_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, steps_done=0)
    file.write(1, "train", {"loss": float("inf")})
    file.close()

    assert None is json.loads((tmp_path / METRICS).read_bytes())["loss"]


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("notes\n")

    with pytest.raises(MetricsError, match="no metrics file of this program"):
        MetricsFile(tmp_path, steps_done=0)
    assert "notes\n" == (tmp_path / METRICS).read_text()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_is_told_settings_and_numbers_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in package with the three functions that wandb and trackio share."""
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    tracker = tracker_named(name, tmp_path, "run", {"seed": 3})
    tracker.log(7, flat({"loss": 0.5, "accuracy_by_step": [0.25, None], "name": "x"}, "train/"))
    tracker.finish()

    assert [
        ["init", "drafter-gate", "run", {"seed": 3}],
        ["log", 7, {"train/loss": 0.5, "train/accuracy_by_step/0": 0.25}],
        ["finish"],
    ] == [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]


def test_a_tracker_that_is_not_installed_is_named_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)

    with pytest.raises(MetricsError, match=r"--track wandb: .* not installed here. Run: pip install wandb"):
        tracker_named("wandb", tmp_path, "run", {})
