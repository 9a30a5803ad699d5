"""A drafter for SmolLM2 from questions to acceptance length: rows, states, training, evaluation, a command each.

Guarantees: the prompts that are evaluated are those that `smollm-rows` held out, so no row of training has any
of their turns; the drafter as it was before training and a table of what follows what are measured beside it on the
same prompts, and every answer is compared with the target's own. Each stage that is there already is passed over, and
the first that fails ends it with that command's exit status.
Usage: `python -m harness smollm-demo MODEL OUT FILE… [--epochs 3] [--prompts 20]`, the files as evaluations keep them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.files import write_whole
from pipeline.base.paths import ROOT

HELD_OUT = "held_out.jsonl"
RESULT = "evaluation.json"
SAMPLED: Mapping[str, Sequence[str]] = {
    "rows": (),
    "rows-sampled": ("--temperature", "0.8", "--seed", "1"),
}
"""Folders of rows, and how each is sampled: as evaluation decodes, and once more at random."""
SHAPES = ("chain:4", "tree:4,2,2,1")
DRAFT_VOCABULARY = 6144
LEARNING_RATE = 1.5e-3
"""Fifteen times the usual: minutes of a CPU are hundreds of steps, not hundreds of thousands."""


def commands(options: argparse.Namespace) -> Iterator[tuple[str, Path, list[str]]]:
    """Each stage: its name, what it leaves behind, and the command behind `python -m`."""
    out, model = options.out, str(options.model)
    folders = [str(out / name) for name in SAMPLED]
    for folder, sampling in zip(folders, SAMPLED.values(), strict=True):
        rows = ["harness", "smollm-rows", model, folder, *map(str, options.questions), *sampling]
        yield Path(folder).name, Path(f"{folder}.done"), rows
    target, threads = ["--target", model], ["--threads", str(options.threads)]
    states = ["pipeline", "states", *folders, *target, "--out", str(out / "states"), "--device", "cpu"]
    yield "states", out / "states.done", states
    train = ["pipeline", "train", str(out / "states"), *target, "--out", str(out / "run"), "--device", "cpu", *threads]
    train += ["--draft-vocabulary", str(DRAFT_VOCABULARY), "--learning-rate", str(options.learning_rate)]
    train += ["--epochs", str(options.epochs), "--tokens-a-batch", "1024", "--ttt-length", "4", "--warmup", "0.05"]
    train += ["--checkpoint-every", "100", "--validate-every", "400", "--held-out", "0.03"]
    yield "train", out / "run" / "drafter" / "config.json", train
    evaluate = ["pipeline", "evaluate", str(out / "run" / "drafter"), *target, "--prompts", f"{folders[0]}/{HELD_OUT}"]
    evaluate += [word for shape in SHAPES for word in ("--shape", shape)]
    evaluate += ["--max-tokens", str(options.max_tokens), "--untrained", "0", *threads, "--json", "--bigram", *folders]
    evaluate += [] if options.prompts is None else ["--limit", str(options.prompts)]
    yield "evaluate", out / RESULT, evaluate


def run(options: argparse.Namespace) -> int:
    """All stages; the exit status of the first that fails."""
    options.out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    for name, left, command in commands(options):
        if left.exists():
            sys.stderr.write(f"{name}: there already\n")
            continue
        sys.stderr.write(f"{name}: python -m {' '.join(command)}\n")
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False, stdout=subprocess.PIPE)
        seconds[name] = round(time.monotonic() - begun, 1)
        if name == "evaluate" and done.stdout.startswith(b"{"):
            write_whole(left, lambda file, data=done.stdout: _write(file, data))  # type: ignore[misc]  # bound on purpose
        if done.returncode:
            sys.stderr.write(f"{name} ended with {done.returncode}\n")
            return done.returncode
        if left.suffix == ".done":
            left.touch()
    for line in told(json.loads((options.out / RESULT).read_bytes()), seconds):
        sys.stdout.write(f"{line}\n")
    return 0


def told(result: Mapping[str, Any], seconds: Mapping[str, float]) -> Iterator[str]:
    """Acceptance lengths by drafter, set and shape, the contract, and the wall time of each stage that ran."""
    yield f"{'drafter':<20} {'set':<12} {'shape':<14} {'prompts':>7} {'length':>6} {'without loops':>13} {'ratio':>5}"
    for each in result["sets"]:
        numbers = (each["acceptance_length"], each["acceptance_length_without_loops"], each["speedup"])
        length, free, ratio = ("-" if number is None else f"{number:.2f}" for number in numbers)
        yield (
            f"{each['drafter']:<20} {each['set']:<12} {each['shape']:<14} {each['prompts']:>7} {length:>6} "
            f"{free:>13} {ratio:>5}"
        )
    found = result["lossless"]
    yield (f"lossless: {found['answers']} answers, {len(found['ties'])} differ at a tie, {len(found['failures'])} fail")
    yield "wall time: " + (", ".join(f"{name} {number:,.0f} s" for name, number in seconds.items()) or "nothing ran")


def _write(file: Any, data: bytes) -> None:  # noqa: ANN401 - a binary file
    file.write(data)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness smollm-demo", description=__doc__)
    add = parser.add_argument
    add("model", type=Path, help="a model directory, as harness.measures.drafter.smollm writes")
    add("out", type=Path, help="the folder of rows, states, run and evaluation, new or begun before")
    add("questions", type=Path, nargs="+", help="JSON Lines with `turns` or `messages`, a set a file")
    add("--epochs", type=int, default=3)
    add("--learning-rate", type=float, default=LEARNING_RATE)
    add("--prompts", type=int, help="at most so many held-out prompts of each set")
    add("--max-tokens", type=int, default=96)
    add("--threads", type=int, default=2)
    return run(parser.parse_args(arguments))
