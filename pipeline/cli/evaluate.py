"""Measure a drafter by real speculative decoding with its target.

    python -m pipeline evaluate DRAFTER_DIR --target DIR --prompts FILE

Guarantees: every answer is compared with the target's own; exit 1 says that one differs where it must not. On a GPU the
gate is asked first, since its hours cost money (exit 3). Unusable input is exit 2, in one sentence.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.screen import progress_bar, say, show, show_json
from pipeline.cli.options import ArgumentsError, add_accepted, positive
from pipeline.gate.gate import SHUT, GateShutError, Job, Kind, require
from pipeline.records import Json

if TYPE_CHECKING:
    from pipeline.drafter.decoding.evaluate import Contender, Trial
    from pipeline.drafter.decoding.prompts import EvaluationPrompt, Render
    from pipeline.drafter.decoding.verify import Verifier
    from pipeline.drafter.model.model import Drafter
    from pipeline.drafter.rows import TrainingRows
    from pipeline.drafter.target.hidden_states import Target

FAILED = 1
TEMPLATE = "template"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "evaluate", help="measure a drafter's acceptance and speed, and whether it is lossless"
    )
    add = parser.add_argument
    add("drafter", type=Path, metavar="DRAFTER_DIR", help="an exported drafter")
    add("--target", type=Path, required=True, metavar="DIR", help="the target's model directory, local files alone")
    prompts = "prompts as `generate` reads them, ids, or an evaluation set (a file or a folder)"
    add("--prompts", type=Path, nargs="+", required=True, metavar="FILE", help=prompts)
    shapes = "chain:N, tree:N,N,… or dynamic:DEPTH,TOP,TOKENS; may be given again (default: chain:4)"
    add("--shape", action="append", metavar="SHAPE", help=shapes)
    add("--max-tokens", type=positive, default=128, metavar="N", help="longest answer (default: 128)")
    add("--limit", type=positive, metavar="N", help="the first N prompts of each set")
    add("--format", metavar="NAME", help="what renders messages: a format, or `template` for the target's own")
    add(
        "--layers", metavar="LOW,MID,HIGH", help="layers whose states the drafter reads, instead of those in its config"
    )
    add("--untrained", type=int, metavar="SEED", help="also evaluate the drafter as it was before training")
    add(
        "--bigram",
        type=Path,
        nargs="+",
        metavar="ROWS_FOLDER",
        help="also evaluate a table of which token follows which in these rows",
    )
    add_accepted(parser)
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1 …; always computes in float32")
    add("--threads", type=positive, metavar="N", help="threads of torch, on the CPU")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")
    parser.set_defaults(run=run_evaluate)


def run_evaluate(args: argparse.Namespace) -> int:
    """Load, decode, compare, report; return the exit status."""
    import torch

    from pipeline.drafter.decoding.evaluate import evaluate
    from pipeline.drafter.decoding.report import require_apart
    from pipeline.drafter.decoding.speculate import Limits
    from pipeline.drafter.decoding.trees import parse_shape
    from pipeline.drafter.decoding.verify import Verifier

    shapes = [parse_shape(text) for text in args.shape or ["chain:4"]]
    if args.device != "cpu":
        try:
            require(Job(Kind.TRAIN))
        except GateShutError as error:
            say(*error.lines)
            return SHUT
    if args.threads:
        torch.set_num_threads(args.threads)
    target, drafter = _loaded(args)
    verifier = Verifier(target)
    prompts = _prompts(args, verifier, args.max_tokens + max(shape.depth for shape in shapes))
    contenders = _contenders(args, drafter, verifier)
    names = [contender.name for contender in contenders]
    require_apart((prompt.dataset for prompt in prompts), names, [shape.name for shape in shapes])
    with _progress(len(prompts)) as show:
        trials = evaluate(verifier, contenders, shapes, prompts, Limits(args.max_tokens, verifier.end_ids), show)
    return _report(args, target, trials)


def layers_named(text: str | None) -> tuple[int, ...] | None:
    """Parse `LOW,MID,HIGH`. Raises ArgumentsError."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ArgumentsError(f"--layers {text} are no layers: give three numbers, as in 2,14,26")
    return tuple(map(int, parts))


def _loaded(args: argparse.Namespace) -> tuple[Target, Drafter]:
    """Load target and drafter on their device.

    In float32, where the rounding of two passes differs by far less than a tie.
    """
    import torch

    from pipeline.drafter.export.serving import load_drafter, trained_on
    from pipeline.drafter.target.files import read_embedding_and_head, target_facts
    from pipeline.drafter.target.hidden_states import device_named, load_target

    facts = target_facts(args.target)
    device = device_named(args.device)
    embedding = read_embedding_and_head(args.target).embedding.to(device)
    drafter = load_drafter(args.drafter, facts, embedding, layers=layers_named(args.layers))
    if (other := trained_on(args.drafter)) not in (None, facts.weights_sha256):
        say(f"note: {args.drafter} was trained for other weights ({other!s:.12}) than this target's")
    layers = drafter.config.aux_layers
    return load_target(args.target, layers=layers, device=device, dtype=torch.float32, facts=facts), drafter


def _prompts(args: argparse.Namespace, verifier: Verifier, tokens: int) -> list[EvaluationPrompt]:
    """Read the prompts that leave room for `tokens` more.

    At most `--limit` of each dataset; those without room are reported. Raises ArgumentsError where none is left.
    """
    from pipeline.drafter.decoding.prompts import evaluation_prompts_in

    taken: Counter[str] = Counter()
    found: list[EvaluationPrompt] = []
    for prompt in evaluation_prompts_in(args.prompts, _renderer(args), verifier.target.facts.vocab_size):
        taken[prompt.dataset] += 1
        if args.limit is None or taken[prompt.dataset] <= args.limit:
            found.append(prompt)
    kept = [prompt for prompt in found if len(prompt.ids) + tokens <= verifier.context]
    if left := len(found) - len(kept):
        say(f"{left} prompts left out: with answer and draft they exceed the target's context of {verifier.context}")
    if not kept:
        raise ArgumentsError(f"none of {len(found)} prompts can be evaluated. Lower --max-tokens, or give others")
    return kept


def _renderer(args: argparse.Namespace) -> Render | None:
    """Return what renders messages to ids, if known."""
    from pipeline.drafter.decoding.prompts import formats_of, template_renderer
    from pipeline.formats.registry import open_format

    if args.format == TEMPLATE:
        return template_renderer(args.target)
    if args.format is not None:
        return open_format(args.format, str(args.target)).render
    names = formats_of(args.target)
    return open_format(names[0], str(args.target)).render if len(names) == 1 else None


def _contenders(args: argparse.Namespace, drafter: Drafter, verifier: Verifier) -> list[Contender]:
    """Return who drafts. Raises SeedError, and what reading rows raises."""
    from pipeline.drafter.decoding.drafting import DrafterDrafting, TableDrafting, successors_in, untrained_like
    from pipeline.drafter.decoding.evaluate import Contender

    found = [Contender(args.drafter.resolve().name, DrafterDrafting(drafter))]
    if args.untrained is not None:
        name = f"untrained, seed {args.untrained}"
        found.append(Contender(name, DrafterDrafting(untrained_like(drafter, args.untrained))))
    if args.bigram:
        rows = _rows(args, verifier)
        table = successors_in((row.ids.tolist(), row.mask.tolist()) for row in rows)
        found.append(Contender("bigram", TableDrafting(table)))
    return found


def _rows(args: argparse.Namespace, verifier: Verifier) -> TrainingRows:
    """Read rows that fit the target's vocabulary and context.

    Raises RowsError, TargetError, ArgumentsError.
    """
    from pipeline.drafter.rows import TrainingRows, read_rows
    from pipeline.drafter.target.files import check_rows

    accepted = {"accept_changed_tree": args.accept_changed_tree, "accept_unsigned": args.accept_unsigned}
    found, context = read_rows(args.bigram, **accepted), verifier.context
    kept = [entry for entry in found.entries if len(entry.ids) <= context]
    if not kept:
        raise ArgumentsError(
            f"each of {len(found)} rows of --bigram is longer than the target's context of {context}. Give others"
        )
    if left := len(found) - len(kept):
        say(f"{left} rows left out of --bigram: they exceed the target's context of {context}")
    rows = TrainingRows(kept, found.folders, found.policy, found.left_out)
    check_rows(verifier.target.facts, rows)
    return rows


@contextmanager
def _progress(total: int) -> Iterator[Callable[[EvaluationPrompt], None]]:
    """Show progress on stderr.

    A bar on a terminal, elsewhere a line every twenty prompts.
    """
    done = 0
    with progress_bar() as bar:

        def show(_: EvaluationPrompt) -> None:
            nonlocal done
            done += 1
            if bar is not None:
                bar.update(done, total, "prompts")
            elif done % 20 == 0:
                say(f"{done:,} of {total:,} prompts")

        yield show


def _report(args: argparse.Namespace, target: Target, trials: Sequence[Trial]) -> int:
    """Print the figures; return 1 if drafting changed an answer."""
    from pipeline.drafter.decoding.report import document_of, lossless, table_of

    if args.json:
        settings: dict[str, Json] = {
            "drafter": str(args.drafter),
            "drafter_sha256": hashlib.sha256((args.drafter / "model.safetensors").read_bytes()).hexdigest(),
            "target_weights_sha256": target.facts.weights_sha256,
            "aux_layers": [*target.layers],
            "max_tokens": args.max_tokens,
            "device": str(target.device),
        }
        show_json({**settings, **document_of(trials)})
    else:
        show(*table_of(trials))
    return FAILED if lossless(trials)["failures"] else 0
