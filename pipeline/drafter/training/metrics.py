"""Figures of a training by step, their file, and trackers.

Guarantees: `metrics.jsonl` has one line a step, whole or absent. A run continued from a checkpoint first removes the
lines of steps that it will repeat, so that the file equals that of a run that never stopped. A tracker is used only
where it was requested by name, since most of them send their numbers elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pipeline.base.files import write_whole
from pipeline.records import Json

METRICS = "metrics.jsonl"


class MetricsError(Exception):
    """An unreadable metrics file, or a missing tracker."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Per step of training-time test: mean loss, accuracy, rows.

    `total` is the sum of the means, each with its step's weight: what is minimised.
    """

    loss: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    rows: tuple[int, ...]
    total: float

    @property
    def acceptance(self) -> float:
        """Expected accepted drafts in a row, if steps were independent.

        a0 + a0 * a1 + ...
        """
        return simulated_acceptance(self.accuracy)

    def document(self) -> dict[str, Json]:
        return {
            "loss": self.total,
            "loss_by_step": [*self.loss],
            "accuracy_by_step": [*self.accuracy],
            "rows_by_step": [*self.rows],
            "simulated_acceptance": self.acceptance,
        }


def figures_of(
    sums: Sequence[float], correct: Sequence[float], rows: Sequence[float], divisors: Sequence[float], decay: float
) -> Figures:
    """Return figures of sums over all batches and processes.

    `divisors` is what each step's loss averages over.
    """
    loss = tuple(total / of if of else None for total, of in zip(sums, divisors, strict=True))
    accuracy = tuple(right / of if of else None for right, of in zip(correct, rows, strict=True))
    total = sum(decay**step * mean for step, mean in enumerate(loss) if mean is not None)
    return Figures(loss, accuracy, tuple(int(number) for number in rows), total)


def simulated_acceptance(accuracy: Sequence[float | None]) -> float:
    """Return the sum of running products of accuracy.

    a0 + a0 * a1 + ..., as SpecForge's evaluator has it. A step without rows ends the sum.
    """
    total, running = 0.0, 1.0
    for share in accuracy:
        if share is None:
            break
        running *= share
        total += running
    return total


class MetricsFile:
    """The metrics of one run; a single process writes them."""

    def __init__(self, folder: Path, *, steps_done: int) -> None:
        """Open the file after the lines of done steps.

        Lines after the first `steps_done` steps are removed. Raises MetricsError where it is another program's file,
        OSError.
        """
        self.path = folder / METRICS
        if self.path.exists():
            data = self.path.read_bytes()
            lines = enumerate(_whole_lines(data), start=1)
            kept = b"".join(line for number, line in lines if _line(self.path, number, line)["step"] <= steps_done)

            def fill(file: BinaryIO) -> None:
                file.write(kept)

            if kept != data:
                write_whole(self.path, fill)
        self._file = self.path.open("ab", buffering=0)

    def write(self, step: int, kind: str, numbers: Mapping[str, Json]) -> None:
        """Append one line. Raises OSError; then the file is unchanged."""
        text = json.dumps(_plain({"step": step, "kind": kind, **numbers}), allow_nan=False)
        length = os.fstat(self._file.fileno()).st_size
        try:
            left = memoryview(f"{text}\n".encode("ascii"))
            while left:  # a full disk may take a part, and refuse only the next write
                left = left[self._file.write(left) :]
        except OSError:
            os.ftruncate(self._file.fileno(), length)
            raise

    def sync(self) -> None:
        """Make written lines survive a power cut. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_metrics(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return all lines, or those of one kind.

    A last line that a kill cut is left out. Raises MetricsError for a line that this program did not write, OSError.
    """
    path = folder / METRICS
    lines = _whole_lines(path.read_bytes()) if path.exists() else []
    found = [_line(path, number, line) for number, line in enumerate(lines, start=1)]
    return [line for line in found if kind is None or line["kind"] == kind]


def _plain(value: Json) -> Json:
    """Replace non-finite numbers, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line. Raises MetricsError unless it is a step's."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # half a line, no UTF-8, or brackets without end
        found = None
    if not isinstance(found, dict) or type(found.get("step")) is not int or not isinstance(found.get("kind"), str):
        what = "is no object with a step and a kind, as this program writes them"
        raise MetricsError(f"{path}, line {number} {what}. Move the file away and run the same command again")
    return found


def _whole_lines(data: bytes) -> list[bytes]:
    """Return the lines, without one that a kill cut."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


class Tracker(Protocol):
    """Shows numbers as they come; `finish` is called exactly once."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def finish(self) -> None: ...


class _RunTracker:
    """wandb, and trackio, which has the same interface."""

    def __init__(self, module: Any, run: str, settings: Mapping[str, Json]) -> None:  # noqa: ANN401 - optional package
        self._module = module
        module.init(project="drafter-gate", name=run, config=dict(settings))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._module.log(dict(numbers), step=step)

    def finish(self) -> None:
        self._module.finish()


class _TensorBoard:
    def __init__(self, module: Any, folder: Path) -> None:  # noqa: ANN401 - optional package
        self._writer = module.SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


TRACKERS = ("trackio", "wandb", "tensorboard")


def tracker_named(name: str, folder: Path, run: str, settings: Mapping[str, Json]) -> Tracker:
    """Return one of `TRACKERS`. Raises MetricsError where not installed."""
    import importlib

    try:
        if name == "tensorboard":
            return _TensorBoard(importlib.import_module("torch.utils.tensorboard"), folder)
        return _RunTracker(importlib.import_module(name), run, settings)
    except ImportError as error:
        what = f"--track {name}: {error.name or name} is not installed here"
        raise MetricsError(
            f"{what}. Run: pip install {name}, or leave it out; {METRICS} is written either way"
        ) from error


def flat(numbers: Mapping[str, Json], prefix: str = "") -> dict[str, float]:
    """Flatten numbers for trackers; other values are left out.

    Numbers of a list are named by their place.
    """
    found: dict[str, float] = {}
    for name, value in numbers.items():
        values = {f"{name}/{at}": one for at, one in enumerate(value)} if isinstance(value, list) else {name: value}
        found |= {f"{prefix}{key}": float(one) for key, one in values.items() if isinstance(one, int | float)}
    return found
