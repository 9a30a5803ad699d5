"""What a training says of itself, step by step: numbers, the file that keeps them, and trackers that show them.

Guarantees: `metrics.jsonl` has one line a step, whole or not there; a run that goes on from a checkpoint first takes
off the lines of steps that come again, so that the file is that of a run that was never stopped. A tracker is used only
where it was asked for by name, since most of them send what they are told elsewhere.
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
    """A metrics file that is none, or a tracker that is not installed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What some batches gave, for each step of training-time test: mean loss, share of rows right, rows.

    `total` is the sum of the means, each with its step's weight: what was minimised.
    """

    loss: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    rows: tuple[int, ...]
    total: float

    @property
    def acceptance(self) -> float:
        """How many drafts in a row would be right, were each step's share independent: a0 + a0 * a1 + ..."""
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
    """Figures of sums over all batches and processes; `divisors` is what each step's loss is a mean over."""
    loss = tuple(total / of if of else None for total, of in zip(sums, divisors, strict=True))
    accuracy = tuple(right / of if of else None for right, of in zip(correct, rows, strict=True))
    total = sum(decay**step * mean for step, mean in enumerate(loss) if mean is not None)
    return Figures(loss, accuracy, tuple(int(number) for number in rows), total)


def simulated_acceptance(accuracy: Sequence[float | None]) -> float:
    """a0 + a0 * a1 + ... (as SpecForge's evaluator has it); a step without rows ends it."""
    total, running = 0.0, 1.0
    for share in accuracy:
        if share is None:
            break
        running *= share
        total += running
    return total


class MetricsFile:
    """The lines of one run. Only one process writes there."""

    def __init__(self, folder: Path, *, steps_done: int) -> None:
        """Open it after the lines of the first `steps_done` steps, of which those behind are taken off.

        Raises MetricsError where it is no file of ours, OSError.
        """
        self.path = folder / METRICS
        _cut(self.path, steps_done)
        self._file = self.path.open("ab", buffering=0)

    def write(self, step: int, kind: str, numbers: Mapping[str, Json]) -> None:
        """Append one line. Raises OSError; then the file is as long as it was."""
        text = json.dumps(_plain({"step": step, "kind": kind, **numbers}), allow_nan=False)
        length = os.fstat(self._file.fileno()).st_size
        try:
            left = memoryview(f"{text}\n".encode("ascii"))
            while left:  # a disk that fills up takes a part, and refuses only what is written after that
                left = left[self._file.write(left) :]
        except OSError:
            os.ftruncate(self._file.fileno(), length)
            raise

    def sync(self) -> None:
        """Make what was written survive a power cut. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_metrics(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines that are there, all or of one kind; a last one that a kill cut is left out.

    Raises MetricsError where a line is none of ours, OSError.
    """
    path = folder / METRICS
    lines = _whole_lines(path.read_bytes()) if path.exists() else []
    found = [_line(path, number, line) for number, line in enumerate(lines, start=1)]
    return [line for line in found if kind is None or line["kind"] == kind]


def _plain(value: Json) -> Json:
    """JSON has no word for what is not finite, however deep it stands."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _cut(path: Path, steps_done: int) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    lines = enumerate(_whole_lines(data), start=1)
    kept = [line for number, line in lines if _line(path, number, line)["step"] <= steps_done]
    if (text := b"".join(kept)) != data:

        def fill(file: BinaryIO) -> None:
            file.write(text)

        write_whole(path, fill)


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """What the line says. Raises MetricsError where that is no step of a kind."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # half a line, no UTF-8, or brackets without end
        found = None
    if not isinstance(found, dict) or type(found.get("step")) is not int or not isinstance(found.get("kind"), str):
        what = "is no object with a step and a kind, as this program writes them"
        raise MetricsError(f"{path}, line {number} {what}. Move the file away and run the same command again")
    return found


def _whole_lines(data: bytes) -> list[bytes]:
    """All lines but a last one without an end, which a kill cut."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


class Tracker(Protocol):
    """What shows numbers as they come. `finish` is called once, whatever ended the run."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def finish(self) -> None: ...


class _Logged:
    """wandb, and trackio, which has the same interface."""

    def __init__(self, module: Any, run: str, settings: Mapping[str, Json]) -> None:  # noqa: ANN401 - optional package
        self._module = module
        module.init(project="drafter-gate", name=run, config=dict(settings))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._module.log(dict(numbers), step=step)

    def finish(self) -> None:
        self._module.finish()


class _Board:
    def __init__(self, module: Any, folder: Path) -> None:  # noqa: ANN401 - optional package
        self._writer = module.SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


TRACKERS = ("trackio", "wandb", "tensorboard")


def tracker_named(name: str, folder: Path, run: str, settings: Mapping[str, Json]) -> Tracker:
    """One of `TRACKERS`. Raises MetricsError where it is not installed."""
    import importlib

    try:
        if name == "tensorboard":
            return _Board(importlib.import_module("torch.utils.tensorboard"), folder)
        return _Logged(importlib.import_module(name), run, settings)
    except ImportError as error:
        what = f"--track {name}: {error.name or name} is not installed here"
        raise MetricsError(
            f"{what}. Run: pip install {name}, or leave it out; {METRICS} is written either way"
        ) from error


def flat(numbers: Mapping[str, Json], prefix: str = "") -> dict[str, float]:
    """Numbers as trackers take them: a list's numbers by their place, and nothing that is none."""
    found: dict[str, float] = {}
    for name, value in numbers.items():
        values = {f"{name}/{at}": one for at, one in enumerate(value)} if isinstance(value, list) else {name: value}
        found |= {f"{prefix}{key}": float(one) for key, one in values.items() if isinstance(one, int | float)}
    return found
