"""Evaluate drafters by decoding prompts, and compare every answer.

Each prompt is answered plainly once, then by every drafter in every shape. Guarantees: losslessness is checked on every
prompt of every set, never on a sample. Where an answer differs, the report has the margin by which plain decoding chose
its token there: up to `TIE`, two passes of other widths may round to either token; above it the difference is a failure
of the cache, the mask or the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from pipeline.drafter.decoding.drafting import Drafting
from pipeline.drafter.decoding.prompts import EvaluationPrompt
from pipeline.drafter.decoding.speculate import (
    Limits,
    PlainDecoding,
    SpeculativeDecoding,
    decode_plainly,
    first_difference,
    speculate,
)
from pipeline.drafter.decoding.trees import Shape
from pipeline.drafter.decoding.verify import Verifier

TIE = 1e-4
"""In logits: below it the two best tokens count as equal."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A drafter, and the name it is reported under."""

    name: str
    drafting: Drafting


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative answer first left the plain one.

    Token index, and the margin of the plain choice. `plain` and `speculated` are the tokens there; None where that
    answer has ended.
    """

    at: int
    margin: float
    plain: int | None
    speculated: int | None

    @property
    def is_tie(self) -> bool:
        return self.margin <= TIE


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt, answered by one contender in one shape."""

    contender: str
    shape: Shape
    prompt: EvaluationPrompt
    plain: PlainDecoding
    speculated: SpeculativeDecoding
    difference: Difference | None


def evaluate(
    verifier: Verifier,
    contenders: Sequence[Contender],
    shapes: Sequence[Shape],
    prompts: Sequence[EvaluationPrompt],
    limits: Limits,
    progress: Callable[[EvaluationPrompt], None] = lambda _: None,
) -> list[Trial]:
    """Run all trials, prompt by prompt.

    `progress` is called with each finished prompt. The first prompt is decoded once more beforehand, so that no
    measured time holds the cost of a first pass. Raises VerifyError.

    Example:
        drafter = Contender("eagle3", DrafterDrafting(load_drafter(folder, target.facts, target.embedding)))
        verifier = Verifier(target)
        trials = evaluate(verifier, [drafter], [parse_shape("chain:4")], prompts, Limits(128, verifier.end_ids))
        report = document_of(trials)
    """
    if prompts:
        decode_plainly(verifier, prompts[0].ids, limits)
    trials: list[Trial] = []
    for prompt in prompts:
        plain = decode_plainly(verifier, prompt.ids, limits)
        for shape in shapes:
            for contender in contenders:
                answer = speculate(verifier, contender.drafting, shape, prompt.ids, limits)
                difference = compare(plain, answer)
                trials.append(Trial(contender.name, shape, prompt, plain, answer, difference))
        progress(prompt)
    return trials


def compare(plain: PlainDecoding, speculated: SpeculativeDecoding) -> Difference | None:
    """Return the first difference; None where the tokens are equal."""
    at = first_difference(plain.ids, speculated.ids)
    if at is None:
        return None
    own, other = (ids[at] if at < len(ids) else None for ids in (plain.ids, speculated.ids))
    # An answer that continues where the other ended has passed an end token or a limit: no margin excuses that.
    margin = inf if own is None or other is None else plain.margins[at]
    return Difference(at, margin, own, other)
