"""Compare greedy speculative answers with the target's own.

`python -m harness lossless [--target MODEL --prompts FILE] [--drafter DIR]`

Guarantees: each prompt is answered plainly, then in every shape by up to three drafters: a trained one where it is
given, one with drawn weights, and one that knows the answer and errs three times in ten, so that paths of every length
are kept and discarded. Without `--target` the tiny target answers prompts that it was never taught. Exit 1 where an
answer differs though plain decoding's margin exceeds a tie; ties are listed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from harness.fixtures.drafters import KnowingDrafting, drawn_drafter
from harness.tiny_target.grammar import samples
from harness.tiny_target.words import Split
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show, show_json

if TYPE_CHECKING:
    from pipeline.drafter.decoding.drafting import Drafting
    from pipeline.drafter.decoding.evaluate import Trial
    from pipeline.drafter.decoding.prompts import EvaluationPrompt
    from pipeline.drafter.decoding.speculate import Limits
    from pipeline.drafter.decoding.trees import Shape
    from pipeline.drafter.decoding.verify import Verifier
    from pipeline.drafter.target.hidden_states import Target

TINY = ROOT / "harness" / "tiny_target" / "weights"
SEED = 77
COUNT = 240
SHAPES = ("chain:4", "tree:4,2,2,1", "dynamic:4,4,16")


def tiny_questions(count: int) -> list[EvaluationPrompt]:
    """Return held-out prompts of every topic of the tiny target."""
    from pipeline.drafter.decoding.prompts import EvaluationPrompt
    from pipeline.formats.registry import open_format

    fmt = open_format("tiny-kimi")
    drawn = (sample.prompt for sample in islice(samples(SEED, Split.HELD_OUT), count))
    return [EvaluationPrompt(str(number), fmt.render(prompt), "tiny") for number, prompt in enumerate(drawn)]


def trials(
    target: Target,
    trained: Path | None,
    questions: Sequence[EvaluationPrompt],
    shapes: Sequence[Shape],
    max_tokens: int,
    *,
    drawn: bool = True,
) -> list[Trial]:
    """Return all answers of all drafters. Raises VerifyError.

    Raises what loading the drafter raises, too.
    """
    from pipeline.drafter.decoding.drafting import DrafterDrafting
    from pipeline.drafter.decoding.speculate import Limits
    from pipeline.drafter.decoding.verify import Verifier, VerifyError
    from pipeline.drafter.export.serving import load_drafter

    verifier = Verifier(target)
    limits = Limits(max_tokens, verifier.end_ids)
    fixed: dict[str, Drafting] = {}
    if drawn:
        fixed["drawn"] = DrafterDrafting(drawn_drafter(target, min(512, target.facts.vocab_size)))
    if trained is not None:
        drafter = load_drafter(trained, target.facts, target.embedding)
        if drafter.config.aux_layers != target.layers:
            raise VerifyError(f"{trained} reads layers {drafter.config.aux_layers}, these are of {target.layers}")
        fixed["trained"] = DrafterDrafting(drafter)
    found: list[Trial] = []
    for number, question in enumerate(questions, start=1):
        found += _of_one(verifier, fixed, question, shapes, limits)
        if number % 20 == 0:
            say(f"{number} of {len(questions)} prompts")
    return found


def _of_one(
    verifier: Verifier, fixed: dict[str, Drafting], question: EvaluationPrompt, shapes: Sequence[Shape], limits: Limits
) -> list[Trial]:
    from pipeline.drafter.decoding.evaluate import Trial, compare
    from pipeline.drafter.decoding.speculate import decode_plainly, speculate

    plain = decode_plainly(verifier, question.ids, limits)
    found = []
    for shape in shapes:
        knowing = KnowingDrafting(question.ids, plain.ids, verifier.target.facts.vocab_size, seed=sum(question.ids))
        for name, drafting in {**fixed, "knowing": knowing}.items():
            answer = speculate(verifier, drafting, shape, question.ids, limits)
            found.append(Trial(name, shape, question, plain, answer, compare(plain, answer)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness lossless", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--target", type=Path, default=TINY, help="the target's model directory (default: the tiny target)")
    add("--prompts", type=Path, nargs="+", help="prompts as `evaluate` reads them (default: the tiny target's own)")
    add("--drafter", type=Path, help="an exported drafter of this target")
    add("--shape", action="append", help=f"may be given again (default: {', '.join(SHAPES)})")
    add("--count", type=int, default=COUNT, help=f"at most so many prompts (default: {COUNT})")
    add("--max-tokens", type=int, default=64)
    add("--without-drawn", action="store_true", help="leave out the one with drawn weights, who is slow")
    add("--threads", type=int, default=1)
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Measure and report; 1 where the contract fails."""
    import torch

    from pipeline.drafter.decoding.prompts import evaluation_prompts_in, formats_of, template_renderer
    from pipeline.drafter.decoding.report import document_of, lossless, table_of
    from pipeline.drafter.decoding.trees import parse_shape
    from pipeline.drafter.target.hidden_states import load_target
    from pipeline.formats.registry import open_format

    torch.set_num_threads(options.threads)
    target = load_target(options.target)
    if options.prompts is None:
        questions = tiny_questions(options.count)
    else:
        names = formats_of(options.target)
        render = open_format(names[0], str(options.target)).render if names else template_renderer(options.target)
        questions = evaluation_prompts_in(options.prompts, render)[: options.count]
    begun = time.monotonic()
    shapes = [parse_shape(text) for text in options.shape or SHAPES]
    drawn = not options.without_drawn
    found = trials(target, options.drafter, questions, shapes, options.max_tokens, drawn=drawn)
    if options.json:
        show_json(document_of(found))
    else:
        show(*table_of(found))
        show(f"{time.monotonic() - begun:,.0f} s")
    return 1 if lossless(found)["failures"] else 0
