"""Figures by hand, their file, and the interface to trackers."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest

from pipeline.drafter.training.metrics import (
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


def test_losses_average_over_divisors_and_shares_over_rows() -> None:
    figures = figures_of([6.0, 4.0, 0.0], [2.0, 1.0, 0.0], [4.0, 2.0, 0.0], [3.0, 2.0, 0.0], decay=0.5)

    assert ((2.0, 2.0, None), (0.5, 0.5, None), (4, 2, 0)) == (figures.loss, figures.accuracy, figures.rows)
    assert (3.0, 0.75) == (figures.total, figures.acceptance)


def test_a_continued_run_removes_lines_of_repeated_steps(tmp_path: Path) -> None:
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


def test_what_is_not_finite_is_null_in_a_list_too(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, steps_done=0)
    file.write(1, "validation", {"loss_by_step": [0.5, math.nan], "of": {"sets": [[-math.inf, 2]]}})
    file.close()

    assert (
        b'{"step": 1, "kind": "validation", "loss_by_step": [0.5, null], "of": {"sets": [[null, 2]]}}\n'
        == (tmp_path / METRICS).read_bytes()
    )


def test_a_full_disk_leaves_the_lines_that_were_whole(tmp_path: Path) -> None:
    """The disk takes ten bytes of the second line.

    The third is written once there is room again.
    """
    file = MetricsFile(tmp_path, steps_done=0)
    file.write(1, "train", {"loss": 0.5})
    before, limits = (tmp_path / METRICS).read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write(2, "train", {"loss": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert before == (tmp_path / METRICS).read_bytes()
    file.write(2, "train", {"loss": 0.125})
    file.close()
    assert [(1, 0.5), (2, 0.125)] == [(line["step"], line["loss"]) for line in read_metrics(tmp_path)]


@pytest.mark.parametrize(
    "line",
    [
        b"notes",
        b'{"step":1}',
        b'{"kind":"train"}',
        b'{"step":"1","kind":"train"}',
        b'{"step":true,"kind":"train"}',
        b'{"step":1,"kind":5}',
        b'{"step":1,"ki{"step":2,"kind":"train"}',
        b"5",
        b"[]",
        b"",
        b"\xff",
        b"[" * 100_000,
    ],
    ids=lambda line: ascii(line[:30]),
)
def test_a_line_that_is_none_of_ours_is_named_and_left_as_it_is(tmp_path: Path, line: bytes) -> None:
    data = b'{"step": 1, "kind": "train"}\n' + line + b"\n"
    (tmp_path / METRICS).write_bytes(data)

    for read in (lambda: MetricsFile(tmp_path, steps_done=1), lambda: read_metrics(tmp_path, "validation")):
        with pytest.raises(MetricsError, match=r"metrics\.jsonl, line 2 is no object .* Move the file away and run"):
            read()
    assert data == (tmp_path / METRICS).read_bytes()


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


def test_a_missing_tracker_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)

    with pytest.raises(MetricsError, match=r"--track wandb: .* not installed here. Run: pip install wandb"):
        tracker_named("wandb", tmp_path, "run", {})
