"""Train and evaluate a drafter end to end.

`python -m harness drafter-demo --out DIR` for the tiny target (`nox -s drafter`), or
`python -m harness drafter-demo --target smollm --model MODEL --out DIR FILE…` for SmolLM2 (`nox -s demo_smollm`).

Guarantees: each stage is a command of its own. No prompt is both trained on and evaluated: the tiny target is evaluated
on the shipped prompts, which come from the held-out split of its grammar, SmolLM2 on the questions that their hash
holds out. The untrained drafter and a bigram table are measured on the same prompts, and every answer is compared with
the target's own. The first command that fails ends the demo with its exit status. For the tiny target, fewer than
`--rows` accepted rows or an acceptance length below the aim is exit 1. A second run on the same folder resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from harness.tiny_target.grammar import samples
from harness.tiny_target.prompts import PROMPTS, line
from harness.tiny_target.provenance import WEIGHTS
from harness.tiny_target.words import Split
from pipeline.base.files import write_whole
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.datasets.decontaminate import asked_in
from pipeline.datasets.sources import SourceError
from pipeline.records import Json, JsonObject
from pipeline.shards.manifest import MANIFEST

FAILED = 1

SEED = 7
"""Seed of the tiny target's training prompts. The shipped prompts have another seed and split."""
SPARE = 1.05
"""Prompts for each row wanted: at temperature 1, about 2 % of the tiny target's answers have no valid layout."""
AIM = 2.5
"""Least acceptance length of the tiny target's drafter, in tokens a round of `SHAPE`."""
SHAPE = "chain:4"
TINY_LEARNING_RATE = 2e-3
"""Twenty times the usual: minutes on a CPU are hundreds of steps, not hundreds of thousands."""

HELD_OUT = "held_out.jsonl"
HELD_OUT_SHARE = 8
"""One question in so many is evaluated and never trained on."""
RESULT = "evaluation.json"
SMOLLM_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SAMPLED: Mapping[str, Sequence[str]] = {
    "rows": ("--temperature", "0"),
    "rows-sampled": ("--temperature", "0.8", "--seed", "1"),
}
"""SmolLM2's folders of rows and their sampling: greedy as in evaluation, then random."""
SHAPES = ("chain:4", "tree:4,2,2,1")
DRAFT_VOCABULARY = 6144
SMOLLM_LEARNING_RATE = 1.5e-3
"""Fifteen times the usual, for the same reason."""

Results: TypeAlias = Mapping[str, Any]
"""What each stage that ran printed as JSON, by stage."""
Seconds: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Stage:
    """One command behind `python -m`, and its success.

    A stage whose `done` exists is skipped; without `done` the command resumes by itself. `evaluation` receives what the
    command printed. Fewer than `least_rows` accepted rows end the demo.
    """

    name: str
    command: Sequence[str]
    done: Path | None = None
    evaluation: Path | None = None
    least_rows: int = 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness drafter-demo", description="A drafter in minutes.")
    add = parser.add_argument
    add("--target", choices=[*TARGETS], default="tiny", help="whose drafter is trained (default: tiny)")
    add("--out", type=Path, required=True, metavar="DIR", help="rows, training and evaluation; new or to resume")
    add("--rows", type=int, default=2000, metavar="N", help="tiny: accepted rows to train on, at least (default: 2000)")
    add("--epochs", type=int, metavar="N", help="passes over all rows (default: tiny 4, smollm 3)")
    add("--threads", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="of torch (default: 2)")
    add("--model", type=Path, metavar="DIR", help="smollm: a model directory, as `python -m harness smollm` writes")
    add("--learning-rate", type=float, default=SMOLLM_LEARNING_RATE, metavar="X", help="smollm (default: 0.0015)")
    add("--prompts", type=int, metavar="N", help="smollm: at most so many held-out prompts of each set")
    add("--max-tokens", type=int, default=96, metavar="N", help="smollm: longest evaluated answer (default: 96)")
    add("questions", type=Path, nargs="*", metavar="FILE", help="smollm: JSON Lines with `turns` or `messages`")
    options = parser.parse_args(arguments)
    if options.target == "smollm" and not (options.model and options.questions):
        parser.error("--target smollm needs --model DIR and at least one FILE of questions")
    try:
        return run(options)
    except SourceError as error:
        parser.error(str(error))


def run(options: argparse.Namespace) -> int:
    """Run all stages and report; the first failure's status."""
    options.out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    results: dict[str, Any] = {}
    stages, report = TARGETS[options.target]
    for stage in stages(options):
        name = stage.name
        if stage.done is not None and stage.done.exists():
            say(f"{name}: there already")
            continue
        say(f"{name}: python -m {' '.join(stage.command)}")
        begun = time.monotonic()
        completed = subprocess.run(
            [sys.executable, "-m", *stage.command], cwd=ROOT, check=False, stdout=subprocess.PIPE
        )
        seconds[name] = round(time.monotonic() - begun, 1)
        if completed.stdout.startswith(b"{"):
            results[name] = json.loads(completed.stdout)
            if stage.evaluation is not None:
                _write(stage.evaluation, completed.stdout)
        if completed.returncode:
            say(f"{name} ended with {completed.returncode}")
            return completed.returncode
        if stage.least_rows and (accepted := int(results[name]["rows"]["accepted"])) < stage.least_rows:
            wanted = f"{accepted} rows were accepted, {stage.least_rows} are wanted"
            say(f"error: {wanted}. Raise --rows a little")
            return FAILED
        if stage.done is not None and stage.done.suffix == ".done":
            stage.done.touch()
    return report(options.out, results, seconds)


def _write(path: Path, data: bytes) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(data)

    write_whole(path, fill)


# The tiny target


def tiny_stages(options: argparse.Namespace) -> Iterator[Stage]:
    """Generate, train, evaluate.

    The training prompts are written before the first stage.
    """
    prompts, rows, run_folder = (options.out / name for name in ("prompts.jsonl", "rows", "run"))
    write_prompts(prompts, round(options.rows * SPARE))
    generate = ["generate", "--route", "local", "--prompts", str(prompts), "--out", str(rows), "--budget-usd", "0"]
    generate += ["--tools", "raw", "--seed", str(SEED), "--concurrency", "128", "--json"]
    yield Stage("generate", ["pipeline", *generate], least_rows=options.rows)
    machine = ["--target", str(WEIGHTS), "--threads", str(options.threads), "--device", "cpu", "--json"]
    train = ["train", str(rows), "--out", str(run_folder), "--epochs", str(options.epochs or 4), *machine]
    train += ["--tokens-a-batch", "1024", "--learning-rate", str(TINY_LEARNING_RATE), "--warmup", "0.03"]
    yield Stage("train", ["pipeline", *train, "--checkpoint-every", "200", "--validate-every", "200"])
    evaluate = ["evaluate", str(run_folder / "drafter"), "--prompts", str(PROMPTS), "--shape", SHAPE, *machine]
    yield Stage("evaluate", ["pipeline", *evaluate, "--untrained", "0", "--bigram", str(rows)])


def write_prompts(path: Path, count: int) -> None:
    """Write the first `count` training prompts for `generate`."""
    _write(path, "".join(line(sample.prompt) for sample in islice(samples(SEED, Split.TRAIN), count)).encode("utf-8"))


def tiny_report(out: Path, results: Results, seconds: Seconds) -> int:
    """Print the figures and write `demo.json`.

    1 below the aim or where an answer differs.
    """
    evaluated = results["evaluate"]
    lengths = {str(cell["drafter"]): float(cell["acceptance_length"] or 0.0) for cell in evaluated["sets"]}
    trained, *others = lengths.items()
    failures = len(evaluated["lossless"]["failures"])
    document = {
        "aim": AIM,
        "shape": SHAPE,
        "acceptance_length": lengths,
        "failures": failures,
        "seconds": dict(seconds),
        "accepted_rows": int(results["generate"]["rows"]["accepted"]),
        "train": results["train"],
    }
    _write(out / "demo.json", (json.dumps(document, indent=2) + "\n").encode("ascii"))
    beside = ", ".join(f"{name} {length:.2f}" for name, length in others)
    times = ", ".join(f"{name} {each:,.0f} s" for name, each in seconds.items())
    show(
        f"{trained[1]:.2f} tokens a round by {SHAPE} (aim {AIM}); {beside}",
        f"{document['accepted_rows']:,} rows accepted ({out / 'rows' / MANIFEST}); {failures} answers differ; {times}",
    )
    return 0 if trained[1] >= AIM and not failures else FAILED


# SmolLM2


def smollm_stages(options: argparse.Namespace) -> Iterator[Stage]:
    """Two folders of rows, hidden states, training, evaluation.

    The prompts are written before the first stage.
    """
    out, model = options.out, str(options.model)
    folders = [str(out / name) for name in SAMPLED]
    write_questions(out, options.questions)
    for folder, sampling in zip(folders, SAMPLED.values(), strict=True):
        rows = ["pipeline", "generate", "--route", "local", "--weights", model, "--model", SMOLLM_MODEL]
        rows += ["--format", "smollm2", "--tokenizer", model, "--prompts", f"{folder}.jsonl", "--out", folder]
        # So small a model often runs into the limit or loops; its rows are free, and evaluation counts loops apart.
        rows += ["--accept-trip", "length_cut", "--accept-trip", "loop"]
        rows += ["--budget-usd", "0", "--max-tokens", "128", "--concurrency", "32", "--json", *sampling]
        yield Stage(Path(folder).name, rows, Path(f"{folder}.done"))
    target, threads = ["--target", model], ["--threads", str(options.threads)]
    states = ["pipeline", "states", *folders, *target, "--out", str(out / "states"), "--device", "cpu"]
    yield Stage("states", states, out / "states.done")
    train = ["pipeline", "train", str(out / "states"), *target, "--out", str(out / "run"), "--device", "cpu", *threads]
    train += ["--draft-vocabulary", str(DRAFT_VOCABULARY), "--learning-rate", str(options.learning_rate)]
    train += ["--epochs", str(options.epochs or 3), "--tokens-a-batch", "1024", "--ttt-length", "4", "--warmup", "0.05"]
    train += ["--checkpoint-every", "100", "--validate-every", "400", "--held-out", "0.03"]
    yield Stage("train", train, out / "run" / "drafter" / "config.json")
    evaluate = ["pipeline", "evaluate", str(out / "run" / "drafter"), *target, "--prompts", str(out / HELD_OUT)]
    evaluate += [word for shape in SHAPES for word in ("--shape", shape)]
    evaluate += ["--max-tokens", str(options.max_tokens), "--untrained", "0", *threads, "--json", "--bigram", *folders]
    evaluate += [] if options.prompts is None else ["--limit", str(options.prompts)]
    yield Stage("evaluate", evaluate, out / RESULT, evaluation=out / RESULT)


def write_questions(out: Path, files: Sequence[Path]) -> None:
    """Write the first question of each record as prompts.

    Held out or not is decided by a question's own hash, so one that is asked twice is on one side. Each folder of rows
    has a file of its own, because rows that are trained on together differ in their ids. Shorter questions come first:
    batches of like lengths pad little. Raises SourceError, OSError.
    """
    names = [path.stem for path in files]
    held: list[JsonObject] = []
    asked: list[JsonObject] = []
    for path in files:
        name = path.stem if names.count(path.stem) == 1 else path.parent.name
        for _, texts in groupby(asked_in(path)[0], key=lambda text: text.line):
            first = next(texts)
            messages: list[Json] = [{"role": "user", "content": first.text}]
            digest = hashlib.sha256(first.text.encode("utf-8", "surrogatepass")).digest()
            chosen = asked if digest[0] % HELD_OUT_SHARE else held
            chosen.append({"id": first.place, "dataset": name, "messages": messages})
    asked.sort(key=lambda prompt: len(str(prompt["messages"])))
    _write(out / HELD_OUT, _lines(held))
    for name in SAMPLED:
        _write(out / f"{name}.jsonl", _lines({**prompt, "id": f"{prompt['id']} {name}"} for prompt in asked))


def _lines(documents: Iterable[JsonObject]) -> bytes:
    return "".join(f"{json.dumps(document)}\n" for document in documents).encode("ascii")


def smollm_report(out: Path, results: Results, seconds: Seconds) -> int:  # noqa: ARG001 - stages that are done do not run
    """Print the evaluation, which may be an earlier run's."""
    for text in table(json.loads((out / RESULT).read_bytes()), seconds):
        show(text)
    return 0


def table(evaluated: Mapping[str, Any], seconds: Seconds) -> Iterator[str]:
    """Yield acceptance lengths, the contract and the times.

    Lengths are by drafter, set and shape.
    """
    yield f"{'drafter':<20} {'set':<12} {'shape':<14} {'prompts':>7} {'length':>6} {'without loops':>13} {'ratio':>5}"
    for each in evaluated["sets"]:
        numbers = (each["acceptance_length"], each["acceptance_length_without_loops"], each["speedup"])
        length, free, ratio = ("-" if number is None else f"{number:.2f}" for number in numbers)
        yield (
            f"{each['drafter']:<20} {each['set']:<12} {each['shape']:<14} {each['prompts']:>7} {length:>6} "
            f"{free:>13} {ratio:>5}"
        )
    found = evaluated["lossless"]
    yield (f"lossless: {found['answers']} answers, {len(found['ties'])} differ at a tie, {len(found['failures'])} fail")
    yield "wall time: " + (", ".join(f"{name} {number:,.0f} s" for name, number in seconds.items()) or "nothing ran")


TARGETS: Mapping[
    str,
    tuple[Callable[[argparse.Namespace], Iterator[Stage]], Callable[[Path, Results, Seconds], int]],
] = {
    "tiny": (tiny_stages, tiny_report),
    "smollm": (smollm_stages, smollm_report),
}
"""Stages and report of each target."""
