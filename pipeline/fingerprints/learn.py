"""Fingerprints of routes, learned from exchanges: each trait with its value, its votes, and what speaks against it.

Guarantees: one fingerprint for each (provider, model, streamed or not), and nothing of a neighbour's. An exchange that
stands in the file twice has one say. A trait that the format needs and no answer spoke of is there, with no value. An
answer that cannot be learned from is told, and loses no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.fingerprints.counts import Counting, count_traits, counting_of, native_traits, same_count_traits
from pipeline.fingerprints.harvest import BROKEN, Harvest, why_broken
from pipeline.fingerprints.metadata import aside_traits
from pipeline.fingerprints.observations import Observation, RouteKey
from pipeline.fingerprints.shown_text import shown_traits
from pipeline.fingerprints.tool_calls import parsed_traits
from pipeline.fingerprints.votes import Learned
from pipeline.formats.format import Opener
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Json

MOST_TOLD = 12
"""Counterexamples of one trait that are told one by one."""


@dataclass(frozen=True, slots=True)
class LearnedFingerprint:
    """The traits of one route, in the order in which `TraitName` has them, and from how many answers."""

    route: RouteKey
    answers: int
    traits: Mapping[TraitName, Learned]

    def lines(self) -> list[dict[str, Json]]:
        """One object a trait, in the schema that `pipeline.proof.fingerprint.read_fingerprints` reads."""
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
    """What the proof lacks, and the answers that do not say what the trait says.

    The first of those by their ids, and how many more there are.
    """
    more = len(learned.against) - MOST_TOLD
    return [
        *(_said(None, None, lack) for lack in learned.lacks),
        *(_said(ballot.id, ballot.value, ballot.why) for ballot in learned.against[:MOST_TOLD]),
        *([_said(None, None, f"and {more} more")] if more > 0 else []),
    ]


def _said(identity: str | None, value: Json, why: str) -> Json:
    return {"id": identity, "value": value, "why": why}


def learn(found: Harvest) -> list[LearnedFingerprint]:
    """One fingerprint a route, by name; answers that break it are taken out of the harvest, and counted there."""
    routes: dict[RouteKey, list[Observation]] = {}
    for one in found.answers:
        routes.setdefault(one.route, []).append(one)
    every = (_of_whole(found, route, answers) for route, answers in sorted(routes.items()))
    return [one for one in every if one.answers]


def _of_whole(found: Harvest, route: RouteKey, seen: Sequence[Observation]) -> LearnedFingerprint:
    """The fingerprint from those answers that can be learned from, each looked at alone only where some cannot."""
    try:
        return _learned(route, seen)
    except BROKEN:
        plain = [one for one in seen if _is_whole(found, one, Counting())]
        counting = counting_of(count_traits(plain))
        return _learned(route, [one for one in plain if _is_whole(found, one, counting)])


def _is_whole(found: Harvest, one: Observation, counting: Counting) -> bool:
    """Whether the answer can be learned from, in a route that counts so; lost to the harvest where it cannot."""
    try:
        count_traits([one])
        _traits([one], counting, end_proven=True)
    except BROKEN as error:
        found.lose(one, why_broken(error))
        return False
    return True


def _learned(route: RouteKey, seen: Sequence[Observation]) -> LearnedFingerprint:
    counts = count_traits(seen)
    end = counts.get(TraitName.END_COUNTED)
    proven = end is not None and end.trait.proven
    found = {**_unspoken(seen), **counts, **_traits(seen, counting_of(counts), end_proven=proven)}
    return LearnedFingerprint(route, len(seen), {name: found[name] for name in TraitName if name in found})


def _traits(seen: Sequence[Observation], counting: Counting, *, end_proven: bool) -> dict[TraitName, Learned]:
    """The traits that need no other answer's counts but what is known of how the route counts."""
    return {
        **native_traits(seen, counting, end_proven=end_proven),
        **shown_traits(seen, counting, stream=any(one.exchange.stream for one in seen)),
        **parsed_traits(seen, counting),
        **aside_traits(seen),
        **same_count_traits(seen, counting),
    }


def _unspoken(seen: Sequence[Observation]) -> dict[TraitName, Learned]:
    """Traits that rows of this format are refused without, as no answer said anything of them."""
    nothing = Learned(Trait(None, 0, proven=False), (), ("no answer says anything of it",))
    return {name: nothing for one in seen[:1] for name, is_needed in _needs(one).items() if is_needed}


def _needs(one: Observation) -> dict[TraitName, bool]:
    opener = one.model.opener(one.fmt, thinking=True)
    return {
        TraitName.UNCLOSED: opener is not Opener.NOBODY,
        TraitName.LINE_ENDS: one.fmt.tokenizer.id_of_bytes(b"\r\n") is not None,
        TraitName.TURN_END: len(one.fmt.end_ids) > 1,
        TraitName.THINK_LEAD: opener is Opener.MODEL and len(one.fmt.opening_ids) > 1,
        TraitName.PROMPT_SETTINGS: one.fmt.is_dated,
    }
