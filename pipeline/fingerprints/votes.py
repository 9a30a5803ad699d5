"""What many answers say of one trait, and whether that proves it.

Guarantees: an answer that can tell the values apart has one vote, and another value than the winner's is always told.
A trait is proven by `ENOUGH` votes for one value, spread over `OCTAVES` octaves of length, with no dissenter that its
own bytes do not explain. A dissenter that only a count makes is a refused row and no vote; but more than one in
`DISSENT` of those is a route that does two things, and proves nothing.
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
    """What one answer of `size` tokens says: a value, or None where it names none, and `why` in words.

    `certain`: bytes say so, and no count is needed. `excused`: its own bytes or deltas explain why it differs, so a row
    like it is refused by itself.
    """

    id: str
    value: Json
    size: int
    why: str = ""
    certain: bool = False
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Learned:
    """A trait, what spoke against it, and what its proof lacks."""

    trait: Trait
    against: tuple[Vote, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def value(self) -> Json:
        """The value that was learned, proven or not."""
        return self.trait.value

    def lacking(self, lacks: Iterable[str]) -> Learned:
        """The same, and unproven where the proof lacks something else."""
        missing = (*self.lacks, *lacks)
        return replace(self, trait=replace(self.trait, proven=not missing), lacks=missing)


def tally(ballots: Iterable[Vote], *, worst: Sequence[Json] = ()) -> Learned | None:
    """The value that most votes name, or the worst that was seen, where `worst` ranks them; None without a ballot.

    An answer on which a route did better than its worst speaks against nothing.
    """
    cast = list(ballots)
    if not cast:
        return None
    named = [ballot for ballot in cast if ballot.value is not None]
    if not named:
        return Learned(Trait(None, 0, proven=False), tuple(cast), ("no answer names a value",))
    value = _winner(named, worst)
    votes = [ballot for ballot in named if _same(ballot.value, value)]
    against = [one for one in cast if not _same(one.value, value) and (one.value is None or not worst)]
    return Learned(Trait(value, len(votes), proven=True), tuple(against)).lacking(_missing(votes, against))


def _key(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def _same(one: Json, other: Json) -> bool:
    return _key(one) == _key(other)


def _winner(named: Sequence[Vote], worst: Sequence[Json]) -> Json:
    seen = Counter(_key(ballot.value) for ballot in named)
    for value in worst:
        if seen[_key(value)]:
            return value
    return max(named, key=lambda ballot: seen[_key(ballot.value)]).value


def _missing(votes: Sequence[Vote], against: Sequence[Vote]) -> list[str]:
    missing = []
    if len(votes) < ENOUGH:
        missing.append(f"{len(votes)} of {ENOUGH} votes")
    elif (octaves := len({ballot.size.bit_length() for ballot in votes})) < OCTAVES:
        missing.append(f"the lengths span {octaves} of {OCTAVES} octaves")
    rivals = [ballot for ballot in against if ballot.value is not None]
    if plain := [ballot for ballot in rivals if ballot.certain and not ballot.excused]:
        missing.append(f"{len(plain)} show another value by their bytes")
    elif len(rivals) * DISSENT > len(votes):
        missing.append(f"{len(rivals)} of {len(rivals) + len(votes)} name another value")
    return missing
