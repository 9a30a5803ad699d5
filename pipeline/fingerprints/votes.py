"""Decide from many answers' votes whether a trait is proven.

Guarantees: an answer has at most one vote, and every answer that does not name the winner's value is reported. A trait
is proven by `ENOUGH` votes for one value, spread over `OCTAVES` octaves of length, with no dissenter whose own bytes
show another value and do not explain why. A dissenter that only a count makes stands for a refused row and does not
block the proof, unless there is more than one in `DISSENT`: a route that does two things proves nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.proof.fingerprint import Trait
from pipeline.records import Json

ENOUGH = 20
OCTAVES = 3
DISSENT = 10


@dataclass(frozen=True, slots=True)
class Vote:
    """What one answer of `size` tokens says of a trait.

    `value` is None where it names none; `why` is the reason in words. `certain`: its bytes show the value, and no count
    is needed. `excused`: its own bytes or deltas explain why it differs, so a row like it is refused by itself.
    """

    id: str
    value: Json
    size: int
    why: str = ""
    certain: bool = False
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Learned:
    """A trait, votes against it, and what its proof lacks."""

    trait: Trait
    against: tuple[Vote, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def value(self) -> Json:
        """The value that was learned, proven or not."""
        return self.trait.value

    def lacking(self, lacks: Iterable[str]) -> Learned:
        """Return the trait, unproven if its proof lacks anything."""
        missing = (*self.lacks, *lacks)
        return replace(self, trait=replace(self.trait, proven=not missing), lacks=missing)


def tally(votes: Iterable[Vote], *, worst: Sequence[Json] = ()) -> Learned | None:
    """Return the value with most votes; None without a vote.

    Where `worst` ranks values, the first of them that has a vote wins instead, and votes for a better value are not
    held against it.
    """
    cast = list(votes)
    if not cast:
        return None
    named = [vote for vote in cast if vote.value is not None]
    if not named:
        return Learned(Trait(None, 0, proven=False), tuple(cast), ("no answer names a value",))
    numbers = Counter(_key(vote.value) for vote in named)
    most = max(named, key=lambda vote: numbers[_key(vote.value)]).value
    winner = next((value for value in worst if numbers[_key(value)]), most)
    winning = [vote for vote in named if _key(vote.value) == _key(winner)]
    against = [vote for vote in cast if _key(vote.value) != _key(winner) and (vote.value is None or not worst)]
    return Learned(Trait(winner, len(winning), proven=True), tuple(against)).lacking(_lacks(winning, against))


def _key(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def _lacks(votes: Sequence[Vote], against: Sequence[Vote]) -> list[str]:
    lacks = []
    if len(votes) < ENOUGH:
        lacks.append(f"{len(votes)} of {ENOUGH} votes")
    elif (octaves := len({vote.size.bit_length() for vote in votes})) < OCTAVES:
        lacks.append(f"the lengths span {octaves} of {OCTAVES} octaves")
    rivals = [vote for vote in against if vote.value is not None]
    if plain := [vote for vote in rivals if vote.certain and not vote.excused]:
        lacks.append(f"{len(plain)} show another value by their bytes")
    elif len(rivals) * DISSENT > len(votes):
        lacks.append(f"{len(rivals)} of {len(rivals) + len(votes)} name another value")
    return lacks
