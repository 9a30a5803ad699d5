"""Runs of `python -m pipeline train` as tests start them, and what they left.

Guarantees: each runs past the gate of an attested copy, alone or by torchrun; a kill is SIGKILL, sent once so many
steps stand in the metrics file, so that it falls anywhere in what comes after.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.drafter.metrics import read_metrics

if TYPE_CHECKING:
    import torch

    from harness.copies import Copy

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
TIMING = frozenset({"tokens_a_second"})
"""Numbers of a line that say how fast it was, and differ between any two runs."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The verb `train` on some rows and a target, with options that all runs share."""

    copy: Copy
    rows: Path
    target: Path
    options: tuple[str, ...] = ()

    def command(self, out: Path, *options: str) -> list[str]:
        where = (str(self.rows), "--target", str(self.target), "--out", str(out), "--device", "cpu")
        return ["-m", "pipeline", "train", *where, *self.options, *options]

    def run(self, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """One process, to its end."""
        return self.copy.run(*self.command(out, *options), **PASSIVE)

    def run_by(self, processes: int, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """So many processes by torchrun, to their end."""
        return self.copy.run(*torchrun(processes), *self.command(out, *options), **PASSIVE, OMP_NUM_THREADS="1")

    def stopped(
        self, out: Path, steps: int, *options: str, by: int = signal.SIGKILL, processes: int | None = None
    ) -> int:
        """Send the signal once `steps` steps are in the metrics, to torchrun where there are `processes` of it.

        The exit status, negative for a signal.
        """
        environment = {**os.environ, "DRAFTER_GATE_KEYS": str(self.copy.keys), **PASSIVE}
        quiet: Mapping[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started_by = () if processes is None else torchrun(processes)
        command = [self.copy.python, *started_by, *self.command(out, *options)]
        with subprocess.Popen(command, cwd=self.copy.root, env=environment, **quiet) as process:
            while process.poll() is None and len(read_metrics(out, "train")) < steps:
                time.sleep(0.002)
            process.send_signal(by)
            return process.wait()


def torchrun(processes: int) -> tuple[str, ...]:
    """What starts so many processes on this machine."""
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")


def curve(out: Path) -> list[dict[str, Any]]:
    """Every line of the metrics but what says how fast it was."""
    return [{name: value for name, value in line.items() if name not in TIMING} for line in read_metrics(out)]


def final_tensors(out: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of the last checkpoint, by name."""
    from pipeline.drafter.checkpoints import load, newest

    place = newest(out)
    if place is None:
        raise FileNotFoundError(f"{out} holds no checkpoint")
    snapshot = load(place)
    return {**snapshot.drafter, **snapshot.optimizer}


def farthest(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of two numbers in the same place. Raises KeyError where the tensors are others."""
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in {**one, **other})


def same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    import torch

    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(line["loss"]) for line in lines if line["kind"] == "train"]
