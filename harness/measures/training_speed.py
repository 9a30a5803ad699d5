"""Measure a training step beside SpecForge's and speculators'.

`python -m harness training-speed`

Guarantees: each implementation runs in a process of its own and takes its steps in turns with the others, a round at a
time, so that a busy machine slows all alike; only ratios of the same round are compared. Before anything is timed, each
peer's loss of every step must equal ours in that peer's mode. Memory is the most that a step takes on top of what its
process held, in a round of its own. A missed aim is printed and is no error. A peer that is not installed is left out,
and that is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self, cast

from pipeline.base.screen import say, show

SEQUENCES, SHARES = (512, 2048), (100, 50, 5)
SPEED_AIM, MEMORY_AIM = 1.5, 0.7
"""Of the faster peer's tokens a second, and of its memory."""
ROUNDS = 9
TOLERANCE = 1e-4
"""Of a step's loss, in float32 sums of thousands of rows."""
PEERS = ("specforge", "specforge-compact", "speculators")
QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
MEMORY, TIME = "memory", "time"


class BenchError(Exception):
    """A side that gave no answer, or computes something else."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one side's steps took, round by round.

    Seconds by the clock and of processor time; `memory` is bytes on top of what it held.
    """

    wall: list[float]
    cpu: list[float]
    memory: float


class RunningSide:
    """One side's process and its losses, by mode."""

    def __init__(self, side: str, tokens: int, percent: int) -> None:
        self.side = side
        command = [sys.executable, "-m", "harness.measures.training_sides", side, str(tokens), str(percent)]
        pipe, environment = subprocess.PIPE, {**os.environ, **QUIET}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        try:
            self.losses = cast("dict[str, list[float]]", self._answer())
        except BenchError:
            self.process.communicate()
            raise

    def step(self, figure: str) -> dict[str, float]:
        """Take one step; return its time or its memory."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{figure}\n")
            self.process.stdin.flush()
        return cast("dict[str, float]", self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.process.communicate("")

    def _answer(self) -> object:
        for line in self.process.stdout or ():
            if line.startswith("{"):  # the peers print to stdout, too
                return json.loads(line)
        raise BenchError(f"{self.side} ended without an answer; its own message stands above")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print each peer's line once it is there."""
    parser = argparse.ArgumentParser(
        prog="python -m harness training-speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seq", type=int, nargs="+", default=SEQUENCES, metavar="N", help="tokens (default 512 2048)")
    shares = "supervised shares in percent (default 100 50 5)"
    parser.add_argument("--shares", type=int, nargs="+", default=SHARES, metavar="P", help=shares)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each measurement (default {ROUNDS})")
    options = parser.parse_args(arguments)
    present = [peer for peer in PEERS if importlib.util.find_spec(peer.partition("-")[0])]
    for absent in sorted({peer.partition("-")[0] for peer in PEERS if peer not in present}):
        show(f"{absent} is not installed and is left out: nox -s bench_drafter")
    try:
        for line in lines(options.seq, options.shares, present, options.rounds):
            show(line)
    except BenchError as error:
        say(f"error: {error}")
        return 1
    return 0


def lines(sequences: Sequence[int], shares: Sequence[int], peers: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield a heading, then each size and share."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    yield f"one optimiser step, hidden 256, 7 steps of training-time test, 2 threads, {rounds} rounds ({load})"
    for tokens in sequences:
        for percent in shares:
            yield from compared(measured(tokens, percent, ["ours", *peers], rounds), tokens, percent)


def measured(tokens: int, percent: int, sides: Sequence[str], rounds: int) -> dict[str, Taken]:
    """Return each side's steps, taken in turns. Raises BenchError."""
    with ExitStack() as stack:
        running = [stack.enter_context(RunningSide(side, tokens, percent)) for side in sides]
        check({one.side: one.losses for one in running})
        memory = [one.step(MEMORY)["bytes"] for one in running]
        taken = [[one.step(TIME) for one in running] for _ in range(rounds)]
    found = {}
    for place, side in enumerate(sides):
        steps = [steps[place] for steps in taken]
        found[side] = Taken([step["wall"] for step in steps], [step["cpu"] for step in steps], memory[place])
    return found


def check(losses: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Raise BenchError unless all losses equal ours, step by step."""
    for side, told in losses.items():
        for whose, found in told.items():
            for step, (theirs, ours) in enumerate(zip(found, losses["ours"][whose], strict=True)):
                if not abs(theirs - ours) <= TOLERANCE:
                    raise BenchError(f"{side}'s loss of step {step} is {theirs}, ours in its mode is {ours}")


def compared(taken: Mapping[str, Taken], tokens: int, percent: int) -> Iterator[str]:
    """Yield each peer's cost as a multiple of ours.

    Then how the faster one stands to the aims.
    """
    own = taken["ours"]
    rate = tokens / statistics.median(own.wall)
    yield f"seq {tokens}, {percent} % supervised: ours {rate:.0f} tokens/s, {own.memory / 2**20:.0f} MiB"
    speeds: dict[str, float] = {}
    for peer, theirs in taken.items():
        if peer != "ours":
            speeds[peer], by_cpu = ratio(theirs.wall, own.wall), ratio(theirs.cpu, own.cpu)
            share = f"{own.memory / theirs.memory:.2f} of its memory"
            yield f"    {peer:18} {speeds[peer]:.2f} x its tokens/s ({by_cpu:.2f} x by processor time), {share}"
    if speeds:
        fastest = min(speeds, key=lambda peer: speeds[peer])
        fast, small = speeds[fastest] >= SPEED_AIM, own.memory <= MEMORY_AIM * taken[fastest].memory
        met = f"tokens/s {_met(met=fast)}, memory {_met(met=small)}"
        yield f"    faster: {fastest}; aims {SPEED_AIM} x tokens/s and {MEMORY_AIM} of its memory: {met}"


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median of their time over ours, by round."""
    return statistics.median(peer / own for peer, own in zip(theirs, ours, strict=True))


def _met(*, met: bool) -> str:
    return "met" if met else "MISSED"
