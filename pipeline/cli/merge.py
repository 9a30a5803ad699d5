"""Make one training set of the shards of several runs.

    python -m pipeline merge OUT SHARDS_DIR …

Guarantees: the set is written whole or not at all. Exit 2 in one sentence where an input is not what its manifest says,
or inputs do not belong in one set.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.screen import show, show_json
from pipeline.cli.options import add_accept_unsigned
from pipeline.records import Evidence

if TYPE_CHECKING:
    from pipeline.shards.merge import Merged


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("merge", help="make one training set of the shards of several runs")
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="a new folder for the set")
    add(
        "runs",
        type=Path,
        nargs="+",
        metavar="SHARDS_DIR",
        help="folders that runs wrote; of rows with one id, the first is kept",
    )
    add(
        "--min-evidence",
        type=Evidence,
        choices=list(Evidence),
        default=Evidence.COUNTED,
        help="the weakest evidence that is kept, of output and prompt the weaker (default: counted)",
    )
    prompts = "the weakest evidence of a prompt (default: as --min-evidence)"
    add("--min-prompt-evidence", type=Evidence, choices=list(Evidence), help=prompts)
    add("--cap", type=cap, action="append", default=[], metavar="DATASET=N", help="at most N rows of a dataset")
    add("--dedup", action="store_true", help="of rows with the same prompt ids, keep the first")
    add_accept_unsigned(parser)
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")
    parser.set_defaults(run=run_merge)


def run_merge(args: argparse.Namespace) -> int:
    """Merge, and print what came of the rows."""
    from pipeline.shards.merge import MergePolicy, merge, table_of
    from pipeline.shards.merge_inputs import read_inputs

    policy = MergePolicy(args.min_evidence, dict(args.cap), args.dedup, args.min_prompt_evidence)
    merged = merge(read_inputs(args.runs, accept_unsigned=args.accept_unsigned), policy, args.out)
    if args.json:
        counts = {name: merged.total(name) for name in ("rows_in", "rows", "set_aside", "refused")}
        show_json({"out": str(args.out), **counts, "table": [*table_of(merged)]})
    else:
        show(*_table(merged, args.out))
    return 0


def _table(merged: Merged, out: Path) -> Iterator[str]:
    yield f"{'dataset':<14} {'route':<24} {'rows':>8} {'prompt':>11} {'output':>11} {'USD':>12}  by evidence"
    for (dataset, route), cell in sorted(merged.cells.items()):
        usd = merged.usd(dataset, route)
        numbers = f"{cell.rows:>8,} {cell.prompt_tokens:>11,} {cell.output_tokens:>11,} {usd or 'not split':>12}"
        yield f"{dataset or '-':<14} {route:<24} {numbers}  {_listed(cell.evidence)}"
        if cell.rows:
            yield f"{'':<39} {'prompts':>8}: {_listed(cell.prompt_evidence)}"
        if cell.cut:
            yield f"{'':<39} {cell.cut:>8,} cut, which training leaves out without --keep-cut"
        if cell.set_aside:
            yield f"{'':<39} {cell.set_aside.total():>8,} set aside: {_listed(cell.set_aside)}"
        if cell.refused:
            yield f"{'':<39} {cell.refused.total():>8,} refused before: {_listed(cell.refused)}"
    if merged.policy.min_prompt_evidence is None and merged.set_aside("weak_prompt_evidence"):
        yield "note: weak_prompt_evidence are prompts that were only counted: --min-prompt-evidence counted keeps them"
    rows_in, kept, aside = (merged.total(name) for name in ("rows_in", "rows", "set_aside"))
    written = f"{kept:,} in {len(merged.shards)} shards in {out}"
    yield f"{rows_in:,} rows in: {written}, {aside:,} set aside in set_aside.jsonl"
    models = sorted({str(each.settings.get("model")) for each in merged.inputs})
    if len(models) > 1:
        yield f"note: the rows are of {len(models)} models: {', '.join(models)}"
    if any(each.document["cost"].get("emulated") for each in merged.inputs):
        yield "note: costs of emulator routes are no money"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))


def cap(text: str) -> tuple[str, int]:
    """Parse `DATASET=N`. Raises argparse.ArgumentTypeError."""
    name, _, number = text.rpartition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no cap: give DATASET=N, as in B1=20000")
    return name, int(number)
