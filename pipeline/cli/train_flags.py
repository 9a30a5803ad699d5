"""The flags of `python -m pipeline train`, by what they are about.

Guarantees: what is no value of a flag is refused by argparse, with the values that are. Needs no torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.options import positive
from pipeline.cli.states import add_rows
from pipeline.drafter.training.metrics import TRACKERS


def add_all(parser: argparse.ArgumentParser) -> None:
    """Every flag of the verb."""
    what = "folders that `generate` or `merge` wrote, or one that `states` wrote"
    add_rows(parser, "ROWS_FOLDER|STATES_FOLDER", what)
    for add in (_add_run, _add_loss, _add_data, _add_optimiser, _add_machine):
        add(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--out", type=Path, required=True, metavar="DIR", help="the run, new or gone on with; the drafter comes into it"
    )
    add("--checkpoint-every", type=positive, default=500, metavar="N", help="steps between checkpoints (default: 500)")
    add("--validate-every", type=positive, default=500, metavar="N", help="steps between validations (default: 500)")
    add("--keep", type=positive, default=2, metavar="N", help="how many checkpoints stay (default: 2)")
    add("--track", choices=TRACKERS, help="show the metrics there too, if it is installed; it may send them elsewhere")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")


def _add_loss(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ttt-length", type=int, default=7, metavar="K", help="steps of training-time test (default: 7)")
    add("--decay", type=float, default=0.8, metavar="W", help="step k weighs W ** k (default: 0.8)")
    compat = "supervise another trainer's rows, over its denominators, instead of those that serving asks for"
    add("--compat", choices=("specforge", "speculators"), help=compat)
    size = "tokens that the drafter can name: the most frequent emitted ones, and control tokens (default: 32000)"
    add("--draft-vocabulary", type=positive, default=32_000, metavar="N", help=size)


def _add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    tokens = "rows are packed into batches of at most so many tokens; longer ones are left out (default: 4096)"
    add("--tokens-a-batch", type=positive, default=4096, metavar="N", help=tokens)
    batches = "batches that each process sums up before a step (default: 1)"
    add("--accumulate", type=positive, default=1, metavar="N", help=batches)
    add("--epochs", type=positive, default=10, metavar="N", help="times that all rows are read (default: 10)")
    add("--steps", type=positive, metavar="N", help="end after so many steps, however many epochs that is")
    held_out = "share of rows, by the hash of their ids, that validate and never train (default: 0.02)"
    add("--held-out", type=float, default=0.02, metavar="S", help=held_out)
    add("--seed", type=int, default=0, help="of fresh weights and of the order of rows (default: 0)")


def _add_optimiser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--learning-rate", type=float, default=1e-4, metavar="R", help="AdamW's highest (default: 0.0001)")
    add("--warmup", type=float, default=0.015, metavar="S", help="share of steps in which it rises (default: 0.015)")
    add("--weight-decay", type=float, default=0.0, metavar="W", help="AdamW's (default: 0)")
    add("--betas", type=float, nargs=2, default=(0.9, 0.95), metavar=("B1", "B2"), help="AdamW's (default: 0.9 0.95)")
    add("--clip", type=float, default=0.5, metavar="N", help="longest gradient (default: 0.5)")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", help="cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    precision = "in what the drafter computes; weights stay float32 (default: bfloat16 on a GPU, else float32)"
    add("--precision", choices=("float32", "bfloat16"), help=precision)
    compute = "in what the target computes (default: float32 on a CPU, its own on a GPU)"
    add("--compute-dtype", choices=("bfloat16", "float16", "float32"), help=compute)
    sharing = "how several processes of torchrun share the work (default: ddp)"
    add("--sharing", choices=("ddp", "fsdp2"), default="ddp", help=sharing)
    add("--threads", type=positive, metavar="N", help="of torch, on a CPU")
    export = "of the weights in the drafter's directory (default: bfloat16)"
    add("--export-dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help=export)
