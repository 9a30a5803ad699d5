"""Evaluation by decoding: each prompt answered plainly once, then by every drafter in every shape, and compared.

Guarantees: the lossless contract is checked on every prompt of every set, never on a sample. Where an answer differs,
the margin by which plain decoding chose its token at the first difference is reported: up to `TIE` two passes of other
widths may round to either token; above it the difference is a failure, of the cache, the mask or the states.
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
"""In logits: below it the two best tokens are taken for equal."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One who drafts, by the name under which it is reported."""

    name: str
    drafting: Drafting


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative answer left the plain one first: token index and by how much the plain choice was better.

    `plain` and `speculated` are the tokens there; None where that answer has ended.
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
    question: EvaluationPrompt
    plain: PlainDecoding
    speculated: SpeculativeDecoding
    difference: Difference | None


def evaluate(
    verifier: Verifier,
    contenders: Sequence[Contender],
    shapes: Sequence[Shape],
    questions: Sequence[EvaluationPrompt],
    limits: Limits,
    told: Callable[[EvaluationPrompt], None] = lambda _: None,
) -> list[Trial]:
    """All trials, a question after another. `told` is called with each question once it is through.

    The first question is decoded once more beforehand, so that nobody's seconds hold what a first pass costs.
    Raises VerifyError.
    """
    if questions:
        decode_plainly(verifier, questions[0].ids, limits)
    trials: list[Trial] = []
    for question in questions:
        plain = decode_plainly(verifier, question.ids, limits)
        for shape in shapes:
            for contender in contenders:
                answer = speculate(verifier, contender.drafting, shape, question.ids, limits)
                difference = compare(plain, answer)
                trials.append(Trial(contender.name, shape, question, plain, answer, difference))
        told(question)
    return trials


def compare(plain: PlainDecoding, speculated: SpeculativeDecoding) -> Difference | None:
    """The first difference of the answers; None where they are the same tokens."""
    at = first_difference(plain.ids, speculated.ids)
    if at is None:
        return None
    own, other = (ids[at] if at < len(ids) else None for ids in (plain.ids, speculated.ids))
    # An answer that goes on where the other has ended has passed an end token or a limit: no margin excuses that.
    margin = inf if own is None or other is None else plain.margins[at]
    return Difference(at, margin, own, other)
