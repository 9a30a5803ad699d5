"""Learn the fingerprint of each route from recorded exchanges.

Guarantees: one fingerprint for each (provider, model, streamed or not), and nothing of another route's. An exchange
that stands in the file twice has one vote. A trait that the format needs and no answer spoke of has an entry, with no
value. An answer that cannot be learned from is counted, and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.fingerprints.counts import Counting, count_traits, counting_of, native_traits, same_count_traits
from pipeline.fingerprints.harvest import BROKEN, Harvest
from pipeline.fingerprints.metadata import metadata_traits
from pipeline.fingerprints.observations import Observation, RouteKey
from pipeline.fingerprints.shown_text import shown_traits
from pipeline.fingerprints.tool_calls import tool_call_traits
from pipeline.fingerprints.votes import Learned
from pipeline.formats.format import Opener
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Json

MOST_LISTED = 12
"""Counterexamples of one trait that are listed one by one."""


@dataclass(frozen=True, slots=True)
class LearnedFingerprint:
    """The traits of one route, in the order of `TraitName`."""

    route: RouteKey
    answers: int
    traits: Mapping[TraitName, Learned]

    def lines(self) -> list[dict[str, Json]]:
        """Return one object a trait, as `read_fingerprints` reads them."""
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
                "counterexamples": counterexamples(learned),
            }
            for name, learned in self.traits.items()
        ]


def counterexamples(learned: Learned) -> list[Json]:
    """List what the proof lacks, and the answers against it.

    The first `MOST_LISTED` answers are listed by their ids, then how many more there are.
    """
    found: list[Json] = [{"id": None, "value": None, "why": lack} for lack in learned.lacks]
    found += [{"id": vote.id, "value": vote.value, "why": vote.why} for vote in learned.against[:MOST_LISTED]]
    if (more := len(learned.against) - MOST_LISTED) > 0:
        found.append({"id": None, "value": None, "why": f"and {more} more"})
    return found


def learn(found: Harvest) -> list[LearnedFingerprint]:
    """Return one fingerprint a route, in order of their names.

    Answers that cannot be learned from are taken out of the harvest, and counted there. A route without any other has
    no fingerprint::

        found = harvest_of_file(Path("exchanges.jsonl"), formats_on({"kimi-k2": open_format("kimi-k2", directory)}))
        for fingerprint in learn(found):
            print(fingerprint.route, fingerprint.traits)
    """
    routes: dict[RouteKey, list[Observation]] = {}
    for one in found.answers:
        routes.setdefault(one.route, []).append(one)
    learned = [_learn_route(found, route, observations) for route, observations in sorted(routes.items())]
    return [one for one in learned if one.answers]


def _learn_route(found: Harvest, route: RouteKey, observations: Sequence[Observation]) -> LearnedFingerprint:
    """Learn from all answers that can be learned from.

    Each is tried alone only where learning from all of them fails.
    """
    try:
        return _fingerprint(route, observations)
    except BROKEN:
        readable = [one for one in observations if _can_learn(found, one, Counting())]
        counting = counting_of(count_traits(readable))
        return _fingerprint(route, [one for one in readable if _can_learn(found, one, counting)])


def _can_learn(found: Harvest, one: Observation, counting: Counting) -> bool:
    """Whether learning from this answer works; if not, skip it."""
    try:
        count_traits([one])
        _other_traits([one], counting, end_proven=True)
    except BROKEN as error:
        found.skip_broken(one, error)
        return False
    return True


def _fingerprint(route: RouteKey, observations: Sequence[Observation]) -> LearnedFingerprint:
    counts = count_traits(observations)
    end = counts.get(TraitName.END_COUNTED)
    proven = end is not None and end.trait.proven
    others = _other_traits(observations, counting_of(counts), end_proven=proven)
    found = {**_needed_traits(observations), **counts, **others}
    return LearnedFingerprint(route, len(observations), {name: found[name] for name in TraitName if name in found})


def _other_traits(
    observations: Sequence[Observation], counting: Counting, *, end_proven: bool
) -> dict[TraitName, Learned]:
    """Learn all traits but those of `count_traits`, which these need."""
    return {
        **native_traits(observations, counting, end_proven=end_proven),
        **shown_traits(observations, counting, stream=any(one.exchange.stream for one in observations)),
        **tool_call_traits(observations, counting),
        **metadata_traits(observations),
        **same_count_traits(observations, counting),
    }


def _needed_traits(observations: Sequence[Observation]) -> dict[TraitName, Learned]:
    """Return, without a value, the traits that the format needs.

    Rows of the format are refused without them.
    """
    if not observations:
        return {}
    model, fmt = observations[0].model, observations[0].fmt
    opener = model.opener(fmt, thinking=True)
    needed = {
        TraitName.UNCLOSED: opener is not Opener.NOBODY,
        TraitName.LINE_ENDS: fmt.tokenizer.id_of_bytes(b"\r\n") is not None,
        TraitName.TURN_END: len(fmt.end_ids) > 1,
        TraitName.THINK_LEAD: opener is Opener.MODEL and len(fmt.opening_ids) > 1,
        TraitName.PROMPT_SETTINGS: fmt.is_dated,
    }
    nothing = Learned(Trait(None, 0, proven=False), (), ("no answer says anything of it",))
    return {name: nothing for name, is_needed in needed.items() if is_needed}
