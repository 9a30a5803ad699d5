"""Fingerprints of routes, learned from exchanges: each trait with its value, its votes, and what speaks against it.

Guarantees: one fingerprint for each (provider, model, streamed or not), and nothing of a neighbour's. An exchange that
stands in the file twice has one say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.learning.asides import aside_traits
from pipeline.learning.ballots import Learned
from pipeline.learning.counts import count_traits, counting_of
from pipeline.learning.native import native_traits
from pipeline.learning.observed import Observed, RouteKey
from pipeline.learning.parsed import parsed_traits
from pipeline.learning.same_count import same_count_traits
from pipeline.learning.shown import shown_traits
from pipeline.records import Json
from pipeline.routes import TraitName

MOST_TOLD = 12
"""Counterexamples of one trait that are told one by one."""


@dataclass(frozen=True, slots=True)
class LearnedFingerprint:
    """The traits of one route, in the order in which `TraitName` has them, and from how many answers."""

    route: RouteKey
    answers: int
    traits: Mapping[TraitName, Learned]

    def lines(self) -> list[dict[str, Json]]:
        """One object a trait, in the schema that `pipeline.routes.read_fingerprints` reads."""
        provider, model, stream = self.route
        return [
            {
                "provider": provider,
                "model": model,
                "stream": stream,
                "trait": str(name),
                "value": learned.value,
                "n": learned.trait.n,
                "proven": learned.trait.proven,
                "counterexamples": told(learned),
            }
            for name, learned in self.traits.items()
        ]


def told(learned: Learned) -> list[Json]:
    """The answers that do not say what the trait says, the first ones by their ids, and how many more there are."""
    first: list[Json] = [
        {"id": ballot.id, "value": ballot.value, "why": ballot.why} for ballot in learned.against[:MOST_TOLD]
    ]
    more = len(learned.against) - MOST_TOLD
    return [*first, {"id": None, "value": None, "why": f"and {more} more"}] if more > 0 else first


def learn(seen: Iterable[Observed]) -> list[LearnedFingerprint]:
    """One fingerprint a route, by name."""
    routes: dict[RouteKey, list[Observed]] = {}
    for one in seen:
        routes.setdefault(one.route, []).append(one)
    return [_learned(route, answers) for route, answers in sorted(routes.items())]


def _learned(route: RouteKey, seen: Sequence[Observed]) -> LearnedFingerprint:
    counts = count_traits(seen)
    counting, end = counting_of(counts), counts.get(TraitName.END_COUNTED)
    found = {
        **counts,
        **native_traits(seen, counting, end_proven=end is not None and end.trait.proven),
        **shown_traits(seen, counting, stream=route[2]),
        **parsed_traits(seen, counting),
        **aside_traits(seen),
        **same_count_traits(seen, counting),
    }
    return LearnedFingerprint(route, len(seen), {name: found[name] for name in TraitName if name in found})
