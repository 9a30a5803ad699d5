"""Where two engines' answers to one prompt part, and whether rounding explains it.

Guarantees: only the first difference counts, since what follows it answers to another text; its margin is known on both
sides, and one past the end of an answer is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from pipeline.generation.engines.output import Generation
from pipeline.records import Ids, Json

NEAR: Final = 0.01
"""Nats. Float32 moves a logprob of the tiny target by 1e-5 between engines, bfloat16 by 1e-2."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that differs: where, which under each, and each side's gap to its own runner-up, in nats."""

    prompt: int
    at: int
    ours: int | None
    theirs: int | None
    our_margin: float
    their_margin: float

    @property
    def is_near(self) -> bool:
        """Whether rounding explains it."""
        return max(abs(self.our_margin), abs(self.their_margin)) <= NEAR


def first_difference(prompt: int, ours: Generation, theirs: Generation) -> Difference | None:
    """Where two answers to one prompt part, None where they are equal."""
    if ours.ids == theirs.ids:
        return None
    pairs = zip(ours.ids, theirs.ids, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ours.ids), len(theirs.ids)))
    return Difference(prompt, at, _at(ours, at), _at(theirs, at), margin(ours, at), margin(theirs, at))


def margin(generation: Generation, at: int) -> float:
    """The gap between the token and its runner-up; infinite past the end, where no rounding puts a token."""
    if at >= len(generation.ids):
        return float("inf")
    return generation.logprobs[at] - generation.runner_up[at][1]


def _at(generation: Generation, at: int) -> int | None:
    return generation.ids[at] if at < len(generation.ids) else None


def furthest(ours: Sequence[Generation], theirs: Sequence[Generation]) -> float:
    """The largest distance of two logprobs of one token after one text, in nats."""
    return max(
        (
            abs(a - b)
            for mine, other in zip(ours, theirs, strict=True)
            for a, b, same in zip(mine.logprobs, other.logprobs, _same(mine.ids, other.ids), strict=False)
            if same
        ),
        default=0.0,
    )


def _same(ours: Ids, theirs: Ids) -> Iterator[bool]:
    """True as long as nothing differed."""
    still = True
    for a, b in zip(ours, theirs, strict=False):
        still = still and a == b
        yield still


def compared(ours: Sequence[Generation], theirs: Sequence[Generation]) -> dict[str, Json]:
    """Counts, the distance of logprobs, and every first difference."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    found = [each for n, (mine, other) in pairs if (each := first_difference(n, mine, other)) is not None]
    return {
        "prompts": len(ours),
        "tokens": sum(len(each.ids) for each in ours),
        "equal": len(ours) - len(found),
        "near": sum(each.is_near for each in found),
        "wide": sum(not each.is_near for each in found),
        "furthest_logprob": furthest(ours, theirs),
        "first_differences": [asdict(each) for each in found],
    }
