"""Train a drafter on proven rows, behind the gate.

    python -m pipeline train ROWS_FOLDER --target DIR --out DIR
    torchrun --nproc-per-node N -m pipeline train …

Guarantees: the gate is asked before anything is computed, on any device, since hours of a GPU cost money. Refused, the
exit status is 3 and every reason comes with the command that mends it. Unusable input is 2, in one sentence; a loss
that is not finite is 1, with the rows of its batch; interrupted is 130, with a checkpoint. The same command goes on. Of
several processes, only the first prints. The flags need no torch.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.base.screen import progress_bar, say, show, show_json
from pipeline.cli.options import ArgumentsError, positive
from pipeline.cli.states import add_rows, policy_of
from pipeline.drafter.training.metrics import TRACKERS
from pipeline.gate.gate import SHUT, GateShutError, Permit, require, require_same_tree
from pipeline.records import Json

if TYPE_CHECKING:
    import torch

    from pipeline.drafter.training.data import TrainingData
    from pipeline.drafter.training.distributed import World
    from pipeline.drafter.training.recipe import Recipe
    from pipeline.drafter.training.run import Intervals, SessionEnd
    from pipeline.drafter.training.setup import Setup
    from pipeline.drafter.training.trainer import StepReport


Show: TypeAlias = "Callable[[StepReport], None]"
DRAFTER = "drafter"
PLAIN_EVERY = 5.0
NUMBERS = (
    *("ttt_length", "decay", "draft_vocabulary", "tokens_a_batch", "epochs", "steps", "held_out", "seed"),
    *("learning_rate", "warmup", "weight_decay", "clip"),
)
"""Numbers of a recipe, each set by the flag of its name."""
FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("train", help="train an EAGLE-3 drafter on proven rows")
    add_rows(
        parser, "ROWS_FOLDER|STATES_FOLDER", "folders that `generate` or `merge` wrote, or one that `states` wrote"
    )
    for add in (add_run, add_loss, add_data, add_optimiser, add_machine):
        add(parser)
    parser.set_defaults(run=run_train)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add what is written, and how often."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the run and its drafter, new or begun before")
    add("--checkpoint-every", type=positive, default=500, metavar="N", help="steps between checkpoints (default: 500)")
    add("--validate-every", type=positive, default=500, metavar="N", help="steps between validations (default: 500)")
    add("--keep", type=positive, default=2, metavar="N", help="how many checkpoints are kept (default: 2)")
    add("--track", choices=TRACKERS, help="also show the metrics there, if it is installed; it may send them elsewhere")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")


def add_loss(parser: argparse.ArgumentParser) -> None:
    """Add what is trained for."""
    add = parser.add_argument
    add("--ttt-length", type=int, default=7, metavar="K", help="steps of training-time test (default: 7)")
    add("--decay", type=float, default=0.8, metavar="W", help="step k weighs W ** k (default: 0.8)")
    compat = "use the loss positions and denominators of another trainer, instead of those that serving needs"
    add("--compat", choices=("specforge", "speculators"), help=compat)
    size = "tokens that the drafter can draft: the most frequent emitted ones and control tokens (default: 32000)"
    add("--draft-vocabulary", type=positive, default=32_000, metavar="N", help=size)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add how rows are read."""
    add = parser.add_argument
    tokens = "most tokens in a batch of rows; longer rows are left out (default: 4096)"
    add("--tokens-a-batch", type=positive, default=4096, metavar="N", help=tokens)
    batches = "batches that each process sums before a step (default: 1)"
    add("--accumulate", type=positive, default=1, metavar="N", help=batches)
    add("--epochs", type=positive, default=10, metavar="N", help="how often all rows are read (default: 10)")
    add("--steps", type=positive, metavar="N", help="end after N steps, however many epochs that is")
    held_out = "share of rows, by the hash of their ids, that only validate (default: 0.02)"
    add("--held-out", type=float, default=0.02, metavar="S", help=held_out)
    add("--seed", type=int, default=0, help="seed of fresh weights and of the order of rows (default: 0)")


def add_optimiser(parser: argparse.ArgumentParser) -> None:
    """Add the settings of AdamW."""
    add = parser.add_argument
    add("--learning-rate", type=float, default=1e-4, metavar="R", help="highest learning rate (default: 0.0001)")
    add(
        "--warmup",
        type=float,
        default=0.015,
        metavar="S",
        help="share of steps in which the rate rises (default: 0.015)",
    )
    add("--weight-decay", type=float, default=0.0, metavar="W", help="weight decay (default: 0)")
    add("--betas", type=float, nargs=2, default=(0.9, 0.95), metavar=("B1", "B2"), help="betas (default: 0.9 0.95)")
    add("--clip", type=float, default=0.5, metavar="N", help="largest norm of the gradient (default: 0.5)")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add what it runs on."""
    add = parser.add_argument
    add("--device", help="cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    precision = "dtype in which the drafter computes; weights stay float32 (default: bfloat16 on a GPU, else float32)"
    add("--precision", choices=("float32", "bfloat16"), help=precision)
    compute = "dtype in which the target computes (default: float32 on a CPU, its own on a GPU)"
    add("--compute-dtype", choices=("bfloat16", "float16", "float32"), help=compute)
    sharing = "how several processes of torchrun share the work (default: ddp)"
    add("--sharing", choices=("ddp", "fsdp2"), default="ddp", help=sharing)
    add("--threads", type=positive, metavar="N", help="threads of torch, on a CPU")
    export = "dtype of the weights in the drafter's directory (default: bfloat16)"
    add("--export-dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help=export)


def run_train(args: argparse.Namespace) -> int:
    """Read, ask the gate, train, export; return the exit status."""
    from pipeline.drafter.states.manifest import StoreError
    from pipeline.drafter.target.hidden_states import StatesError
    from pipeline.drafter.training.distributed import is_first
    from pipeline.drafter.training.sampler import SamplerError

    try:
        return _run_train(args)
    except Exception as error:
        if is_first():
            raise
        # The first process reports what all of them meet; it sees an error of this one alone as a broken connection.
        if isinstance(error, StatesError | StoreError | SamplerError):
            say(f"error: {error}")
        return FAILED


def _run_train(args: argparse.Namespace) -> int:
    import torch

    from pipeline.drafter.target.hidden_states import device_named
    from pipeline.drafter.training.data import read_training_data
    from pipeline.drafter.training.distributed import joined

    if args.threads:
        torch.set_num_threads(args.threads)
    device = device_named(args.device)
    recipe = _recipe(args, device)
    longest = min(args.longest or args.tokens_a_batch, args.tokens_a_batch)
    policy = policy_of(args, longest)
    data = read_training_data(
        args.rows,
        args.target,
        policy,
        args.layers,
        accept_changed_tree=args.accept_changed_tree,
        accept_unsigned=args.accept_unsigned,
    )
    _say(*data.notes)
    try:
        permit = require(data.job)
        with joined(device) as world:
            return _train(args, recipe, data, permit, world)
    except GateShutError as error:
        _say(*error.lines)
        return SHUT


def _recipe(args: argparse.Namespace, device: torch.device) -> Recipe:
    """Return what decides the weights. Raises RecipeError, WorldError."""
    from pipeline.drafter.model.loss import MaskMode
    from pipeline.drafter.training.distributed import size_named
    from pipeline.drafter.training.recipe import Precision, Recipe

    return Recipe(
        **{name: getattr(args, name) for name in NUMBERS},
        mode=MaskMode(args.compat or MaskMode.ALIGNED),
        batches_a_step=args.accumulate * size_named(),
        betas=tuple(args.betas),
        precision=Precision(args.precision or ("bfloat16" if device.type == "cuda" else "float32")),
    )


def _train(args: argparse.Namespace, recipe: Recipe, data: TrainingData, permit: Permit, world: World) -> int:
    from pipeline.drafter.training.data import dtype_named
    from pipeline.drafter.training.distributed import Sharing
    from pipeline.drafter.training.run import Intervals
    from pipeline.drafter.training.setup import sentences, set_up
    from pipeline.drafter.training.trainer import repeatable

    begun = time.monotonic()
    with repeatable(world.device), ExitStack() as stack:
        setup = set_up(data, recipe, world, Sharing(args.sharing), dtype_named(args.compute_dtype))
        _say(*sentences(setup, data))
        intervals = Intervals(args.checkpoint_every, args.validate_every, args.keep, args.track)
        end = _steps(args, setup, intervals, permit, stack)
        if not world.is_first:
            return end.code
    _report(args, setup, end, time.monotonic() - begun)
    return end.code


def _steps(
    args: argparse.Namespace, setup: Setup, intervals: Intervals, permit: Permit, stack: ExitStack
) -> SessionEnd:
    """Run the remaining steps, then export the drafter."""
    from pipeline.drafter.training import checkpoints
    from pipeline.drafter.training import run as training_run

    training, world = setup.training, setup.training.world
    held = training_run.held(args.out, setup.settings, accept_unsigned=args.accept_unsigned)
    manifest = world.first(lambda: stack.enter_context(held))
    world.first(lambda: _require_no_other(args, training.sampler.course.steps))
    place = world.first(lambda: checkpoints.newest(args.out))
    if place is not None:
        snapshot = checkpoints.load(place)
        if snapshot.description.get("settings_sha256") != setup.description["settings_sha256"]:
            what = f"{place} is of a run with other settings"
            raise checkpoints.CheckpointError(f"{what}. Remove it, or put this run's own back")
        training.restore(snapshot)
        _say(f"going on after step {training.step} of {training.sampler.course.steps}")
    folder = None
    if world.is_first:
        folder = stack.enter_context(training_run.opened(args.out, manifest, permit, intervals, training.step))
    require_same_tree(permit)
    with progress(training.sampler.course.steps, training.step, speaks=world.is_first) as show:
        end = training_run.train(training, folder, intervals, args.out, setup.description, show, permit.expires)
    if folder is not None:
        if end.code == training_run.COMPLETE:
            _export(args, setup)
        folder.end(end, _result(args, setup, end))
    return end


def _require_no_other(args: argparse.Namespace, steps: int) -> None:
    """Refuse a folder that holds another run's drafter.

    Raises ArgumentsError, before any step.
    """
    from pipeline.drafter.export.serving import ExportError, read_provenance

    place = args.out / DRAFTER
    if not place.exists():
        return
    try:
        found, dtype = read_provenance(place)
    except ExportError as error:
        raise ArgumentsError(f"{error}. Move {place} away") from error
    if found.get("steps") != steps or dtype != args.export_dtype:
        what = f"a drafter of {found.get('steps')} steps in {dtype}, and this run ends in one of {steps} in"
        raise ArgumentsError(f"{place} holds {what} {args.export_dtype}. Move it away")


def _export(args: argparse.Namespace, setup: Setup) -> None:
    """Export the last checkpoint's drafter, unless it is there."""
    from pipeline.drafter.export.serving import export
    from pipeline.drafter.target.files import target_facts
    from pipeline.drafter.training import checkpoints
    from pipeline.drafter.training.data import dtype_named
    from pipeline.drafter.training.setup import drafter_of

    place = checkpoints.newest(args.out)
    if place is None or (args.out / DRAFTER).exists():
        return
    provenance: dict[str, Json] = {"steps": setup.training.step, "recipe": setup.training.recipe.document()}
    provenance |= {"rows": setup.settings["rows"], "draft_vocabulary_coverage": setup.vocabulary.coverage}
    drafter, dtype = drafter_of(checkpoints.load(place)), dtype_named(args.export_dtype)
    export(args.out / DRAFTER, drafter, target_facts(args.target), dtype=dtype, provenance=provenance)


def _result(args: argparse.Namespace, setup: Setup, end: SessionEnd) -> dict[str, Json]:
    """Return what the manifest says of the run's result."""
    from pipeline.drafter.training.metrics import read_metrics

    sides, training = setup.split, setup.training
    validated = next(reversed(read_metrics(args.out, "validation")), None)
    complete = end.code == 0
    rows: dict[str, Json] = {side: len(getattr(sides, side)) for side in ("training", "held_out", "too_long", "mute")}
    return {
        "complete": complete,
        "steps": training.step,
        "steps_in_all": training.sampler.course.steps,
        "rows_used": rows,
        "draft_vocabulary_coverage": setup.vocabulary.coverage,
        "held_out_coverage": setup.held_out_coverage,
        "validation": validated,
        "drafter": str(args.out / DRAFTER) if complete else None,
    }


def _report(args: argparse.Namespace, setup: Setup, end: SessionEnd, seconds: float) -> None:
    """Print the result, and what to run next."""
    result: dict[str, Any] = _result(args, setup, end)
    if args.json:
        session: dict[str, Json] = {"exit": end.code, "message": end.message, "seconds": round(seconds, 1)}
        show_json(session | result)
    if end.code:
        again = shlex.join(["python", "-m", "pipeline", *sys.argv[1:]])
        _say(f"{'error: ' if end.code == FAILED else ''}{end.message}", f"Next, to go on: {again}")
    elif not args.json:
        what = f"{result['steps']:,} steps, this session in {seconds:,.0f} s"
        lines = [f"{what}; the drafter lies in {result['drafter']}"]
        if isinstance(held_out := result["validation"], dict):
            shares = held_out["accuracy_by_step"] or ()
            right = " ".join("-" if share is None else f"{share:.3f}" for share in shares)
            loss, acceptance = held_out["loss"], held_out["simulated_acceptance"]
            lines.append(f"held out: loss {loss:.4f}, right by step {right}, simulated acceptance {acceptance:.3f}")
        lines.append(f"Next: python -m pipeline evaluate {result['drafter']} --target DIR --prompts FILE")
        show(*lines)


@contextmanager
def progress(total: int, done: int, *, speaks: bool) -> Iterator[Show]:
    """Show progress on stderr, unless another process does.

    A bar on a terminal, elsewhere a line every five seconds.
    """
    begun = last = time.monotonic()

    def show(report: StepReport) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= PLAIN_EVERY:
            last = now
            left = (now - begun) / max(report.step + 1 - done, 1) * (total - report.step - 1)
            _say(f"{report.step + 1:,} of {total:,} steps: {_state(report)}, about {left:,.0f} s to go")

    if not speaks:
        yield lambda _: None
        return
    with progress_bar() as bar:
        if bar is None:
            yield show
        else:
            yield lambda report: bar.update(report.step + 1, total, _state(report))


def _state(report: StepReport) -> str:
    figures = report.figures
    speed = report.tokens / max(report.seconds, 1e-9)
    return (
        f"loss {figures.total:.4f}, acceptance {figures.acceptance:.2f}, rate {report.rate:.2e}, "
        f"gradient {report.gradient:.2f}, {speed:,.0f} tokens/s"
    )


def _say(*sentences: str) -> None:
    """Print to stderr, from the first process alone."""
    from pipeline.drafter.training.distributed import is_first

    if is_first():
        say(*sentences)
