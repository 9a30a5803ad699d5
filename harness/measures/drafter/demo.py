"""A drafter for the tiny target from prompts to acceptance length, each stage by its own command, in minutes.

Guarantees: the training prompts are drawn from the grammar's training split and those that are evaluated are the
shipped ones, of its held-out split: no last question is in both. At least `--rows` rows are accepted, with their proof
and manifest, or nothing is trained; the drafter before training and a table of what follows what are measured beside
it, and every answer is compared with the target's own. Exit 1 where the drafter misses its aim, and that of the first
command that fails otherwise. Run again on the same folder, it goes on where it was.
Usage: `python -m harness drafter-demo --out DIR [--rows 2000] [--epochs 4] [--threads 2]`, or `nox -s drafter`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from harness.tiny_target.grammar import samples
from harness.tiny_target.prompts import PROMPTS, line
from harness.tiny_target.provenance import WEIGHTS
from harness.tiny_target.words import Split
from pipeline.base.files import write_whole
from pipeline.base.paths import ROOT
from pipeline.shards.manifest import MANIFEST

SEED = 7
"""Of the training prompts; the shipped ones are of another seed and split."""
SPARE = 1.05
"""Prompts for each row that is wanted: at temperature 1, some 2 % of the tiny target's answers have no valid layout."""
AIM = 2.5
"""Tokens a round that a chain of four should give."""
SHAPE = "chain:4"
LEARNING_RATE = 2e-3
"""Twenty times the usual: minutes of a CPU are hundreds of steps, not hundreds of thousands."""
FAILED = 1


def main(arguments: Sequence[str]) -> int:
    """All stages; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness drafter-demo", description="A drafter in minutes.")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="rows, training and evaluation, new or gone on with")
    add("--rows", type=int, default=2000, metavar="N", help="accepted rows to train on, at least (default: 2000)")
    add("--epochs", type=int, default=4, metavar="N", help="times that all rows are read (default: 4)")
    add("--threads", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="of torch (default: 2)")
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Generate, train, evaluate, report; the exit status of the first that fails."""
    options.out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    found: dict[str, Any] = {}
    for name, command in commands(options):
        begun = time.monotonic()
        sys.stderr.write(f"{name}: python -m pipeline {' '.join(command)}\n")
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *command], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            return done.returncode
        seconds[name] = round(time.monotonic() - begun, 1)
        found[name] = json.loads(done.stdout)
        if name == "generate" and (accepted := int(found[name]["rows"]["accepted"])) < options.rows:
            sys.stderr.write(
                f"error: {accepted} rows were accepted, {options.rows} are wanted. Raise --rows a little\n"
            )
            return FAILED
    return report(options.out, found, seconds)


def commands(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Each stage and its command; the prompts are written before the first."""
    prompts, rows, run = (options.out / name for name in ("prompts.jsonl", "rows", "run"))
    write_prompts(prompts, round(options.rows * SPARE))
    generate = ["generate", "--route", "local", "--prompts", str(prompts), "--out", str(rows), "--budget-usd", "0"]
    yield "generate", [*generate, "--tools", "raw", "--seed", str(SEED), "--concurrency", "128", "--json"]
    machine = ["--target", str(WEIGHTS), "--threads", str(options.threads), "--device", "cpu", "--json"]
    train = ["train", str(rows), "--out", str(run), "--epochs", str(options.epochs), *machine]
    train += ["--tokens-a-batch", "1024", "--learning-rate", str(LEARNING_RATE), "--warmup", "0.03"]
    yield "train", [*train, "--checkpoint-every", "200", "--validate-every", "200"]
    evaluate = ["evaluate", str(run / "drafter"), "--prompts", str(PROMPTS), "--shape", SHAPE, *machine]
    yield "evaluate", [*evaluate, "--untrained", "0", "--bigram", str(rows)]


def write_prompts(path: Path, count: int) -> None:
    """The first `count` prompts of the training split, in the schema that `generate` reads."""
    text = "".join(line(sample.prompt) for sample in islice(samples(SEED, Split.TRAIN), count))

    def fill(file: BinaryIO) -> None:
        file.write(text.encode("utf-8"))

    write_whole(path, fill)


def report(out: Path, found: Mapping[str, Any], seconds: Mapping[str, float]) -> int:
    """The numbers on stdout and in `demo.json`; whether the aim is met and no answer differs."""
    lengths = {str(cell["drafter"]): float(cell["acceptance_length"] or 0.0) for cell in found["evaluate"]["sets"]}
    trained, *others = lengths.items()
    failures = len(found["evaluate"]["lossless"]["failures"])
    document = {
        "aim": AIM,
        "shape": SHAPE,
        "acceptance_length": lengths,
        "failures": failures,
        "seconds": dict(seconds),
    }
    document |= {"accepted_rows": int(found["generate"]["rows"]["accepted"]), "train": found["train"]}
    text = json.dumps(document, indent=2) + "\n"

    def fill(file: BinaryIO) -> None:
        file.write(text.encode("ascii"))

    write_whole(out / "demo.json", fill)
    beside = ", ".join(f"{name} {length:.2f}" for name, length in others)
    times = ", ".join(f"{name} {each:,.0f} s" for name, each in seconds.items())
    sys.stdout.write(
        f"{trained[1]:.2f} tokens a round by {SHAPE} (aim {AIM}); {beside}\n"
        f"{document['accepted_rows']:,} rows accepted ({out / 'rows' / MANIFEST}); {failures} answers differ; {times}\n"
    )
    return 0 if trained[1] >= AIM and not failures else FAILED
