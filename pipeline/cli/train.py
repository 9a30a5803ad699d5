"""`python -m pipeline train`: a drafter from proven rows, behind the gate.

Guarantees: the gate is asked before anything is computed, on any device alike, since hours of a GPU are money; refused,
the exit status is 3 and every reason comes with the command that mends it. Unusable input is 2, in one sentence; a loss
that is not finite is 1, with the rows of its batch; interrupted is 130, with a checkpoint. The same command goes on.
Several processes: `torchrun --nproc-per-node N -m pipeline train …`, of which the first alone speaks.

The flags of `python -m pipeline train`, by what they are about.

Guarantees: what is no value of a flag is refused by argparse, with the values that are. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.cli.options import ArgumentsError, positive
from pipeline.cli.states import add_rows
from pipeline.drafter.training.metrics import TRACKERS
from pipeline.gate.gate import SHUT, GateShutError, Permit, require
from pipeline.records import Json

if TYPE_CHECKING:
    import torch

    from pipeline.drafter.training.checkpoints import Snapshot
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
"""Numbers of a recipe that a flag of the same name gives."""
FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb `train`."""
    parser = subparsers.add_parser("train", help="an EAGLE-3 drafter from proven rows")
    add_all(parser)
    parser.set_defaults(run=run_train)


def run_train(args: argparse.Namespace) -> int:
    """Read, ask the gate, train, export; the exit status."""
    from pipeline.drafter.states.manifest import StoreError
    from pipeline.drafter.target.hidden_states import StatesError
    from pipeline.drafter.training.distributed import is_first
    from pipeline.drafter.training.sampler import SamplerError

    try:
        return _run_train(args)
    except Exception as error:
        if is_first():
            raise
        # The first process says what all meet; what befalls this one alone it hears of as a broken connection.
        if isinstance(error, StatesError | StoreError | SamplerError):
            sys.stderr.write(f"error: {error}\n")
        return FAILED


def _run_train(args: argparse.Namespace) -> int:
    import torch

    from pipeline.drafter.target.hidden_states import device_named
    from pipeline.drafter.training.distributed import joined

    if args.threads:
        torch.set_num_threads(args.threads)
    device = device_named(args.device)
    recipe, material = _recipe(args, device), _material(args)
    _say(*material.notes)
    try:
        permit = require(material.job)
    except GateShutError as error:
        _say(str(error))
        return SHUT
    with joined(device) as world:
        return _train(args, recipe, material, permit, world)


def _recipe(args: argparse.Namespace, device: torch.device) -> Recipe:
    """What the flags say of the weights. Raises RecipeError, WorldError."""
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


def _material(args: argparse.Namespace) -> TrainingData:
    """What the folders hold, under the policy. Raises ArgumentsError and what reading raises."""
    from pipeline.drafter.rows import RowPolicy
    from pipeline.drafter.training.data import read_training_data

    longest = min(args.longest or args.tokens_a_batch, args.tokens_a_batch)
    policy = RowPolicy(args.min_evidence, longest)
    return read_training_data(args.rows, args.target, policy, args.layers, accept_changed_tree=args.accept_changed_tree)


def _train(args: argparse.Namespace, recipe: Recipe, material: TrainingData, permit: Permit, world: World) -> int:
    from pipeline.drafter.training.data import dtype_named
    from pipeline.drafter.training.distributed import Sharing
    from pipeline.drafter.training.run import Intervals
    from pipeline.drafter.training.setup import sentences, set_up
    from pipeline.drafter.training.trainer import repeatable

    begun = time.monotonic()
    with repeatable(world.device), ExitStack() as stack:
        setup = set_up(material, recipe, world, Sharing(args.sharing), dtype_named(args.compute_dtype))
        _say(*sentences(setup, material))
        habits = Intervals(args.checkpoint_every, args.validate_every, args.keep, args.track)
        ending = _steps(args, setup, habits, permit, stack)
        if not world.is_first:
            return ending.code
    _report(args, setup, ending, time.monotonic() - begun)
    return ending.code


def _steps(args: argparse.Namespace, setup: Setup, habits: Intervals, permit: Permit, stack: ExitStack) -> SessionEnd:
    """All steps that are left, the drafter's directory at their end, and what the manifest says of it."""
    from pipeline.drafter.training import checkpoints
    from pipeline.drafter.training import run as training_run

    training, world = setup.training, setup.training.world
    manifest = world.first(lambda: stack.enter_context(training_run.held(args.out, setup.settings)))
    world.first(lambda: _require_no_other(args, training.sampler.course.steps))
    place = world.first(lambda: checkpoints.newest(args.out))
    if place is not None:
        training.restore(_of_this_run(checkpoints.load(place), place, setup))
        _say(f"going on after step {training.step} of {training.sampler.course.steps}")
    folder = None
    if world.is_first:
        folder = stack.enter_context(training_run.opened(args.out, manifest, permit, habits, training.step))
    with progress(training.sampler.course.steps, training.step, speaks=world.is_first) as show:
        ending = training_run.train(training, folder, habits, args.out, setup.description, show, permit.expires)
    if folder is not None:
        if ending.code == training_run.COMPLETE:
            _export(args, setup)
        folder.end(ending, _result(args, setup, ending))
    return ending


def _of_this_run(snapshot: Snapshot, place: Path, setup: Setup) -> Snapshot:
    """The same, if this run wrote it. Raises CheckpointError."""
    from pipeline.drafter.training.checkpoints import CheckpointError

    if snapshot.description.get("settings_sha256") != setup.description["settings_sha256"]:
        raise CheckpointError(f"{place} is of a run with other settings. Remove it, or put this run's own back")
    return snapshot


def _require_no_other(args: argparse.Namespace, steps: int) -> None:
    """Raises ArgumentsError where a drafter lies in the place of this run's that is not its last, before any step."""
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
    """The drafter of the last checkpoint as engines load it; this run's own that is there already stays."""
    from pipeline.drafter.export.serving import export
    from pipeline.drafter.target.files import target_facts
    from pipeline.drafter.training import checkpoints
    from pipeline.drafter.training.data import dtype_named
    from pipeline.drafter.training.setup import drafter_of

    place = checkpoints.newest(args.out)
    if place is None or (args.out / DRAFTER).exists():
        return
    told: dict[str, Json] = {"steps": setup.training.step, "recipe": setup.training.recipe.document()}
    told |= {"rows": setup.settings["rows"], "draft_vocabulary_coverage": setup.vocabulary.coverage}
    drafter, dtype = drafter_of(checkpoints.load(place)), dtype_named(args.export_dtype)
    export(args.out / DRAFTER, drafter, target_facts(args.target), dtype=dtype, provenance=told)


def _result(args: argparse.Namespace, setup: Setup, ending: SessionEnd) -> dict[str, Json]:
    from pipeline.drafter.training.metrics import read_metrics

    sides, training = setup.split, setup.training
    validated = next(reversed(read_metrics(args.out, "validation")), None)
    complete = ending.code == 0
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


def _report(args: argparse.Namespace, setup: Setup, ending: SessionEnd, seconds: float) -> None:
    result = _result(args, setup, ending)
    if args.json:
        told: dict[str, Json] = {"exit": ending.code, "message": ending.message, "seconds": round(seconds, 1)}
        sys.stdout.write(json.dumps(told | result) + "\n")
    if ending.code:
        again = shlex.join(["python", "-m", "pipeline", *sys.argv[1:]])
        _say(f"{'error: ' if ending.code == FAILED else ''}{ending.message}", f"Next, to go on: {again}")
    elif not args.json:
        for line in _lines(result, seconds):
            sys.stdout.write(f"{line}\n")


def _lines(result: dict[str, Any], seconds: float) -> Iterator[str]:
    yield f"{result['steps']:,} steps, this session in {seconds:,.0f} s; the drafter lies in {result['drafter']}"
    if isinstance(held_out := result["validation"], dict):
        shares = held_out["accuracy_by_step"]
        right = (
            " ".join("-" if share is None else f"{share:.3f}" for share in shares) if isinstance(shares, list) else ""
        )
        loss, acceptance = held_out["loss"], held_out["simulated_acceptance"]
        yield f"held out: loss {loss:.4f}, right by step {right}, simulated acceptance {acceptance:.3f}"
    yield f"Next: python -m pipeline evaluate {result['drafter']} --target DIR --prompts FILE"


@contextmanager
def progress(total: int, done: int, *, speaks: bool) -> Iterator[Show]:
    """A bar of steps on a terminal, else a line every five seconds, on stderr; nothing where another process speaks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False)
    if not speaks:
        yield lambda _: None
    elif not console.is_terminal:
        yield _plain_lines(total, done)
    else:
        state = TextColumn("{task.description}", markup=False)
        with Progress(BarColumn(), MofNCompleteColumn(), state, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("steps", total=total, completed=done)
            yield lambda report: bar.update(task, completed=report.step + 1, description=_state(report))


def _plain_lines(total: int, done: int) -> Show:
    begun = last = time.monotonic()

    def show(report: StepReport) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= PLAIN_EVERY:
            last = now
            left = (now - begun) / max(report.step + 1 - done, 1) * (total - report.step - 1)
            _say(f"{report.step + 1:,} of {total:,} steps: {_state(report)}, about {left:,.0f} s to go")

    return show


def _state(report: StepReport) -> str:
    figures = report.figures
    speed = report.tokens / max(report.seconds, 1e-9)
    return (
        f"loss {figures.total:.4f}, acceptance {figures.acceptance:.2f}, rate {report.rate:.2e}, "
        f"gradient {report.gradient:.2f}, {speed:,.0f} tokens/s"
    )


def _say(*sentences: str) -> None:
    """On stderr, by the first process alone."""
    from pipeline.drafter.training.distributed import is_first

    if is_first():
        sys.stderr.write("".join(f"{sentence}\n" for sentence in sentences))


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
