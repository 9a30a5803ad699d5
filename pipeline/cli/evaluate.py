"""`python -m pipeline evaluate`: what a drafter is worth, by real speculative decoding with its target.

Guarantees: every answer is compared with the target's own, and exit 1 says that one differs where it must not; on a GPU
the gate is asked first, since its hours are money (exit 3). Unusable input is 2, in one sentence.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.options import ArgumentsError, positive
from pipeline.gate.gate import SHUT, GateShutError, Job, Kind, require
from pipeline.records import Json

if TYPE_CHECKING:
    from pipeline.drafter.decoding.evaluate import Contender
    from pipeline.drafter.decoding.prompts import EvaluationPrompt, Render
    from pipeline.drafter.decoding.verify import Verifier
    from pipeline.drafter.model.model import Drafter
    from pipeline.drafter.rows import TrainingRows
    from pipeline.drafter.target.files import TargetFacts
    from pipeline.drafter.target.hidden_states import Target

FAILED = 1
TEMPLATE = "template"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb `evaluate`."""
    parser = subparsers.add_parser("evaluate", help="acceptance and speed of a drafter, and whether it is lossless")
    add = parser.add_argument
    add("drafter", type=Path, metavar="DRAFTER_DIR", help="an exported drafter")
    add("--target", type=Path, required=True, metavar="DIR", help="the target's model directory, local files alone")
    prompts = "prompts as `generate` reads them, ids, or an evaluation set (a file or a folder)"
    add("--prompts", type=Path, nargs="+", required=True, metavar="FILE", help=prompts)
    shapes = "chain:N, tree:N,N,… or dynamic:DEPTH,TOP,TOKENS; may be given again (default: chain:4)"
    add("--shape", action="append", metavar="SHAPE", help=shapes)
    add("--max-tokens", type=positive, default=128, metavar="N", help="of an answer at most (default: 128)")
    add("--limit", type=positive, metavar="N", help="at most so many prompts of each set, the first ones")
    add("--format", metavar="NAME", help="what renders messages: a format, or `template`, the target's own")
    add("--layers", metavar="LOW,MID,HIGH", help="which states the drafter reads, whatever its config says")
    add("--untrained", type=int, metavar="SEED", help="evaluate the drafter as it was before training, too")
    add("--bigram", type=Path, nargs="+", metavar="ROWS_FOLDER", help="and a table of what follows what in these rows")
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1 …; computes in float32 on any")
    add("--threads", type=positive, metavar="N", help="of torch, on the CPU")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")
    parser.set_defaults(run=run_evaluate)


def run_evaluate(args: argparse.Namespace) -> int:
    """Load, decode, compare, report; the exit status."""
    import torch

    from pipeline.drafter.decoding.evaluate import evaluate
    from pipeline.drafter.decoding.report import document_of, lossless, require_apart, table_of
    from pipeline.drafter.decoding.speculate import Limits
    from pipeline.drafter.decoding.trees import parse_shape
    from pipeline.drafter.decoding.verify import Verifier

    shapes = [parse_shape(text) for text in args.shape or ["chain:4"]]
    if args.device != "cpu":
        try:
            require(Job(Kind.TRAIN))
        except GateShutError as error:
            sys.stderr.write(f"{error}\n")
            return SHUT
    if args.threads:
        torch.set_num_threads(args.threads)
    target, drafter = _loaded(args)
    verifier = Verifier(target)
    limits = Limits(args.max_tokens, verifier.end_ids)
    questions = _answerable(
        _questions(args, target.facts), verifier, args.max_tokens + max(shape.depth for shape in shapes)
    )
    contenders = _contenders(args, drafter, verifier)
    names = [contender.name for contender in contenders]
    require_apart((question.dataset for question in questions), names, [shape.name for shape in shapes])
    with _progress(len(questions)) as told:
        trials = evaluate(verifier, contenders, shapes, questions, limits, told)
    if args.json:
        sys.stdout.write(json.dumps({**_settings(args, target), **document_of(trials)}) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in table_of(trials)))
    return FAILED if lossless(trials)["failures"] else 0


def layers_named(text: str | None) -> tuple[int, ...] | None:
    """`LOW,MID,HIGH` as numbers. Raises ArgumentsError."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ArgumentsError(f"--layers {text} are no layers: give three numbers, as in 2,14,26")
    return tuple(map(int, parts))


def _loaded(args: argparse.Namespace) -> tuple[Target, Drafter]:
    """Target and drafter on their device, in float32, in which two passes round alike to far below a tie."""
    import torch

    from pipeline.drafter.export.serving import load_drafter, trained_on
    from pipeline.drafter.target.files import read_embedding_and_head, target_facts
    from pipeline.drafter.target.hidden_states import device_named, load_target

    facts = target_facts(args.target)
    device = device_named(args.device)
    embedding = read_embedding_and_head(args.target).embedding.to(device)
    drafter = load_drafter(args.drafter, facts, embedding, layers=layers_named(args.layers))
    if (other := trained_on(args.drafter)) not in (None, facts.weights_sha256):
        _say(f"note: {args.drafter} was trained for other weights ({other!s:.12}) than this target's")
    layers = drafter.config.aux_layers
    return load_target(args.target, layers=layers, device=device, dtype=torch.float32, facts=facts), drafter


def _questions(args: argparse.Namespace, facts: TargetFacts) -> list[EvaluationPrompt]:
    from pipeline.drafter.decoding.prompts import evaluation_prompts_in

    found = evaluation_prompts_in(args.prompts, _render(args), facts.vocab_size)
    if args.limit is None:
        return found
    taken: dict[str, int] = {}
    kept = []
    for question in found:
        taken[question.dataset] = taken.get(question.dataset, 0) + 1
        kept += [question] if taken[question.dataset] <= args.limit else []
    return kept


def _render(args: argparse.Namespace) -> Render | None:
    """What makes ids of messages, as far as it is known."""
    from pipeline.drafter.decoding.prompts import formats_of, template_renderer
    from pipeline.formats.registry import open_format

    if args.format == TEMPLATE:
        return template_renderer(args.target)
    if args.format is not None:
        return open_format(args.format, str(args.target)).render
    names = formats_of(args.target)
    return open_format(names[0], str(args.target)).render if len(names) == 1 else None


def _answerable(questions: Sequence[EvaluationPrompt], verifier: Verifier, tokens: int) -> list[EvaluationPrompt]:
    """Those that leave room for an answer and a draft; the others are said. Raises ArgumentsError where none does."""
    kept = [question for question in questions if len(question.ids) + tokens <= verifier.context]
    if len(kept) < len(questions):
        left = len(questions) - len(kept)
        _say(f"{left} prompts left out: with answer and draft they exceed the target's context of {verifier.context}")
    if not kept:
        raise ArgumentsError(f"none of {len(questions)} prompts can be evaluated. Lower --max-tokens, or give others")
    return kept


def _contenders(args: argparse.Namespace, drafter: Drafter, verifier: Verifier) -> list[Contender]:
    """Who drafts. Raises SeedError, and what reading rows raises."""
    from pipeline.drafter.decoding.drafting import DrafterDrafting, TableDrafting, successors_in, untrained_like
    from pipeline.drafter.decoding.evaluate import Contender

    found = [Contender(args.drafter.resolve().name, DrafterDrafting(drafter))]
    if args.untrained is not None:
        name = f"untrained, seed {args.untrained}"
        found.append(Contender(name, DrafterDrafting(untrained_like(drafter, args.untrained))))
    if args.bigram:
        rows = _rows(args.bigram, verifier)
        found.append(Contender("bigram", TableDrafting(successors_in((r.ids.tolist(), r.mask.tolist()) for r in rows))))
    return found


def _rows(folders: Sequence[Path], verifier: Verifier) -> TrainingRows:
    """Rows in the target's vocabulary, no longer than its context. Raises RowsError, TargetError, ArgumentsError."""
    from pipeline.drafter.rows import TrainingRows, read_rows
    from pipeline.drafter.target.files import check_rows

    found, context = read_rows(folders), verifier.context
    kept = [entry for entry in found.entries if len(entry.ids) <= context]
    if not kept:
        raise ArgumentsError(
            f"each of {len(found)} rows of --bigram is longer than the target's context of {context}. Give others"
        )
    if left := len(found) - len(kept):
        _say(f"{left} rows left out of --bigram: they exceed the target's context of {context}")
    rows = TrainingRows(kept, found.folders, found.policy, found.left_out)
    check_rows(verifier.target.facts, rows)
    return rows


def _settings(args: argparse.Namespace, target: Target) -> dict[str, Json]:
    facts: TargetFacts = target.facts
    return {
        "drafter": str(args.drafter),
        "drafter_sha256": hashlib.sha256((args.drafter / "model.safetensors").read_bytes()).hexdigest(),
        "target_weights_sha256": facts.weights_sha256,
        "aux_layers": [*target.layers],
        "max_tokens": args.max_tokens,
        "device": str(target.device),
    }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[EvaluationPrompt], None]]:
    """A bar of prompts on a terminal, a line every twenty of them elsewhere; on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    done = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("prompts", total=total)

        def told(_: EvaluationPrompt) -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            if not console.is_terminal and done % 20 == 0:
                _say(f"{done:,} of {total:,} prompts")

        yield told


def _say(*sentences: str) -> None:
    sys.stderr.write("".join(f"{sentence}\n" for sentence in sentences))
