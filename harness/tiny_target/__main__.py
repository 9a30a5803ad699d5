"""Train and check the tiny target, or write its prompts.

    python -m harness tiny-target train|check|prompts

Guarantees: `train` writes the whole weights directory or stops with one sentence; `check` exits 1 where the model is
outside its limits. `train` and `check` need torch and transformers.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.tiny_target.prompts import PROMPTS, write_prompts
from harness.tiny_target.provenance import WEIGHTS
from pipeline.base.screen import say, show, show_text
from pipeline.formats.tokenizer import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    0 when it succeeded, 1 when the model or the disk is at fault, 2 on unusable arguments.
    """
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (OSError, TokenizerError) as error:
        say(str(error))
    except KeyboardInterrupt:
        say("Stopped; nothing was written.")
    return 1


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m harness tiny-target", description="The tiny target model.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train the model and write its directory")
    train.add_argument("--out", type=Path, default=WEIGHTS, help="directory to write (default: the committed one)")
    train.add_argument("--steps", type=int, help="optimiser steps (default: the recipe's)")
    train.add_argument("--seed", type=int, help="seed of text, batches and weights (default: the recipe's)")
    train.set_defaults(run=run_train)
    check = commands.add_parser("check", help="examine the model on held-out prompts at temperature 1")
    check.add_argument("--weights", type=Path, default=WEIGHTS, help="directory to examine")
    check.add_argument("--count", type=int, default=800, help="held-out prompts to ask")
    check.add_argument("--seed", type=int, default=11, help="seed of prompts and answers")
    check.set_defaults(run=run_check)
    prompts = commands.add_parser("prompts", help="write the shipped prompts")
    prompts.add_argument("--out", type=Path, default=PROMPTS, help="file to write (default: the committed one)")
    prompts.set_defaults(run=run_prompts)
    return top


def run_train(options: argparse.Namespace) -> int:
    """Train in a temporary folder, then write.

    A run that is stopped leaves the directory as it was.
    """
    from harness.tiny_target.train import Recipe, build

    chosen = {name: value for name in ("steps", "seed") if (value := getattr(options, name)) is not None}
    with TemporaryDirectory() as beside:
        loss = build(Recipe(**chosen), Path(beside))
        shutil.copytree(beside, options.out, dirs_exist_ok=True)
    show(f"{options.out}: loss {loss:.4f}. Next: python -m harness tiny-target check")
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Examine the model, and print its marks."""
    from harness.tiny_target.check import examine
    from pipeline.formats.registry import load_format
    from pipeline.formats.tokenizer import load_tokenizer
    from pipeline.generation.engines.local import EngineError, load_engine

    try:
        engine = load_engine(options.weights)
    except EngineError as error:
        say(str(error))
        return 1
    fmt = load_format("kimi-k2.5", load_tokenizer(options.weights))
    marks = examine(engine, fmt, options.count, options.seed)
    show_text(marks.table())
    say(*(f"{fault}. Run: python -m harness tiny-target train" for fault in marks.faults()))
    return 1 if marks.faults() else 0


def run_prompts(options: argparse.Namespace) -> int:
    """Write the shipped prompts."""
    count = write_prompts(options.out)
    show(f"{options.out}: {count} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
