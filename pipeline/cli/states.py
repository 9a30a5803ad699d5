"""Compute the hidden states of proven rows, for training offline.

    python -m pipeline states ROWS_FOLDER --target DIR --out DIR

Guarantees: the gate is asked before anything is computed, on any device, since hours of a GPU cost money. The size is
printed first, and nothing is computed where the disk would not hold it. Refused by the gate, the exit status is 3;
unusable input is 2, in one sentence. Stopped, the same command goes on and ends in the same bytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pipeline.base.screen import progress_bar, say, show, show_json
from pipeline.cli.options import ArgumentsError, add_accepted, positive
from pipeline.gate.gate import SHUT, GateShutError, Permit, require, require_same_tree
from pipeline.records import Evidence, Json

if TYPE_CHECKING:
    from pipeline.drafter.rows import RowPolicy, TrainingRows
    from pipeline.drafter.states.extract import ExtractionPlan
    from pipeline.drafter.states.manifest import StateManifest
    from pipeline.drafter.target.files import TargetFacts
    from pipeline.drafter.target.hidden_states import Target
    from pipeline.drafter.target.server import ServedTarget

Show: TypeAlias = "Callable[[int], None]"
PLAIN_EVERY = 5.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("states", help="compute the hidden states of proven rows, on disk for training")
    add = parser.add_argument
    add_rows(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the store, new or begun before")
    add(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        default="bfloat16",
        help="dtype of the stored states (default: bfloat16)",
    )
    add("--device", help="cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    add(
        "--compute-dtype",
        choices=("bfloat16", "float16", "float32"),
        help="dtype in which the target computes (default: float32 on a CPU, its own on a GPU)",
    )
    served = "compute by two SGLang servers: one that returns the layers' states, one that returns the last"
    add("--sglang", nargs=2, metavar=("AUX_URL", "LAST_URL"), help=served)
    add("--shard-mb", type=positive, default=256, metavar="MB", help="most megabytes in a shard (default: 256)")
    add("--dry-run", action="store_true", help="print how large the store will be and whether it fits, and stop")
    add("--json", action="store_true", help="one JSON object on stdout instead of the sentences")
    parser.set_defaults(run=run_states)


def add_rows(
    parser: argparse.ArgumentParser,
    name: str = "ROWS_FOLDER",
    what: str = "folders that `generate` or `merge` wrote",
) -> None:
    """Add which rows are read, by which target and layers."""
    add = parser.add_argument
    add("rows", type=Path, nargs="+", metavar=name, help=what)
    add("--target", type=Path, required=True, metavar="DIR", help="the target's model directory, local files alone")
    add_policy(parser)
    add(
        "--layers",
        type=layers,
        metavar="LOW,MID,HIGH",
        help="0-based layers whose outputs are read (default: EAGLE's)",
    )
    add_accepted(parser)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add which rows of the folders are taken."""
    add = parser.add_argument
    add("--longest", type=positive, metavar="N", help="leave out (and count) rows of more tokens, prompt and output")
    evidence = "the weakest evidence that is taken (default: stream_deltas); the risk of `counted` is printed"
    add("--min-evidence", type=Evidence, choices=list(Evidence), default=Evidence.STREAM_DELTAS, help=evidence)
    prompts = "the weakest evidence of a prompt (default: as --min-evidence); prompts of hosted routes are `counted`"
    add("--min-prompt-evidence", type=Evidence, choices=list(Evidence), help=prompts)
    add("--keep-cut", action="store_true", help="take answers that stop without their end token, as at a limit")
    add("--keep-looping", action="store_true", help="take answers that end in a loop, which a drafter learns easily")


def policy_of(args: argparse.Namespace, longest: int | None) -> RowPolicy:
    """Return the policy that the flags name."""
    from pipeline.drafter.rows import RowPolicy

    return RowPolicy(args.min_evidence, longest, args.min_prompt_evidence, args.keep_cut, args.keep_looping)


def layers(text: str) -> tuple[int, ...]:
    """Parse `LOW,MID,HIGH`. Raises argparse.ArgumentTypeError."""
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} are no layers: give three numbers, as in 2,14,26")
    return tuple(int(part) for part in parts)


def run_states(args: argparse.Namespace) -> int:
    """Read, ask the gate, compute; return the exit status."""
    from pipeline.drafter.row_folders import job_of
    from pipeline.drafter.rows import read_rows

    rows = read_rows(
        args.rows,
        policy_of(args, args.longest),
        accept_changed_tree=args.accept_changed_tree,
        accept_unsigned=args.accept_unsigned,
    )
    say(*sentences_of(rows))
    permit: Permit | None = None
    if not args.dry_run:
        try:
            permit = require(job_of(rows.folders))
        except GateShutError as error:
            say(*error.lines)
            return SHUT
    with _served(args) as served:
        plan = _plan(args, rows, served)
        try:
            document = None if permit is None else _extract(plan, args, permit, served)
        except GateShutError as error:
            say(*error.lines)
            return SHUT
    _report(plan, document, args)
    return 0


@contextmanager
def _served(args: argparse.Namespace) -> Iterator[ServedTarget | None]:
    """Open the target behind two servers, if they are named.

    Raises StatesError, TargetError, LayerError.
    """
    if not args.sglang:
        yield None
        return
    from pipeline.drafter.target.files import target_facts
    from pipeline.drafter.target.layers import layers_of
    from pipeline.drafter.target.server import ServedTarget

    facts = target_facts(args.target)
    with ServedTarget(facts, layers_of(facts.num_layers, args.layers), *args.sglang) as served:
        yield served


def sentences_of(rows: TrainingRows) -> Iterator[str]:
    """Yield sentences on the rows read, any risk among them."""
    yield f"{len(rows):,} rows of {rows.tokens:,} tokens, {rows.emitted:,} of them emitted"
    for reason, number in sorted(rows.left_out.items()):
        yield left_out_sentence(reason, number)
    if (risk := rows.risk()) is not None:
        yield f"risk: {risk}"


def left_out_sentence(reason: str, number: int) -> str:
    """Say how many were left out, and what takes them."""
    from pipeline.drafter.rows import REMEDIES, LeftOut

    flag = REMEDIES.get(LeftOut(reason))
    return f"{number:,} rows left out: {reason}" + (f" ({flag})" if flag else "")


def _plan(args: argparse.Namespace, rows: TrainingRows, served: ServedTarget | None) -> ExtractionPlan:
    """Plan the store, if it fits.

    Raises TargetError, LayerError, StoreError.
    """
    from pipeline.drafter.states.extract import ExtractionPlan, require_room
    from pipeline.drafter.states.manifest import DTYPES, computed_with
    from pipeline.drafter.target.files import check_rows, target_facts, target_notes
    from pipeline.drafter.target.hidden_states import computing_dtype, device_named
    from pipeline.drafter.target.layers import layers_of

    facts: TargetFacts = target_facts(args.target)
    check_rows(facts, rows)
    if served is None:
        device = device_named(args.device)
        dtype = computing_dtype(facts, device) if args.compute_dtype is None else DTYPES[args.compute_dtype]
        computed = computed_with(dtype, device)
    else:
        computed = dict(served.computed)
    layers = layers_of(facts.num_layers, args.layers)
    plan = ExtractionPlan(facts, layers, rows, args.dtype, computed, args.shard_mb * 10**6, args.accept_unsigned)
    say(*target_notes(facts, rows), f"the store takes {plan.size}")
    plan.begin(args.out)
    require_room(plan, args.out)
    return plan


def _extract(
    plan: ExtractionPlan, args: argparse.Namespace, permit: Permit, served: ServedTarget | None
) -> StateManifest:
    """Compute and write the states of all rows. Raises ArgumentsError."""
    from pipeline.drafter.states.extract import extract
    from pipeline.drafter.states.manifest import DTYPES
    from pipeline.drafter.target.hidden_states import device_named, load_target

    target: Target | ServedTarget
    if served is None:
        dtype, device = DTYPES[plan.computed["dtype"]], device_named(args.device)
        target = load_target(args.target, layers=plan.layers, device=device, dtype=dtype, facts=plan.facts)
    else:
        target = served
    require_same_tree(permit)
    with progress(len(plan.rows)) as show:

        def shown(done: int) -> None:
            show(done)
            if done < len(plan.rows) and datetime.now(UTC) >= permit.expires:
                raise ArgumentsError(
                    "the attestation expired while this ran; what is written stands. Run: nox -s contract, then the "
                    "same command"
                )

        return extract(plan, target, args.out, attestation=permit.attestation_sha256, progress=shown)


@contextmanager
def progress(total: int) -> Iterator[Show]:
    """Show progress on stderr.

    A bar on a terminal, elsewhere a line every five seconds.
    """
    begun = last = time.monotonic()
    first: int | None = None

    def show(done: int) -> None:
        nonlocal last, first
        first = done if first is None else first
        if (now := time.monotonic()) - last >= PLAIN_EVERY and done > first:
            last = now
            left = (now - begun) / (done - first) * (total - done)
            say(f"{done:,} of {total:,} rows, about {left:,.0f} s to go")

    with progress_bar() as bar:
        yield show if bar is None else lambda done: bar.update(done, total, "rows")


def _report(plan: ExtractionPlan, document: StateManifest | None, args: argparse.Namespace) -> None:
    files = [] if document is None else [shard.file for shard in document.shards]
    if args.json:
        written: dict[str, Json] = {"out": str(args.out), "dry_run": document is None, "shards": len(files)}
        rows: dict[str, Json] = {"rows": len(plan.rows), "left_out": dict(plan.rows.left_out)}
        rows |= {"layers": [*plan.layers], "size": plan.size.document(), "counted_risk": plan.rows.risk()}
        show_json(written | rows)
    elif document is None:
        show(f"it fits: {len(plan.shards())} shards in {args.out}. Nothing was computed")
    else:
        show(f"{len(plan.rows):,} rows with their states: {len(files)} shards in {args.out}")
