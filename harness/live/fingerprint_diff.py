"""A learned fingerprint compared with the committed one.

Guarantees: only what is proven is lost or new; a trait whose value changed is a change even where the new value is not
proven yet. What no probe measures (`same_count_mismatch`) is compared with nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.fingerprints.exchanges import Exchange
from pipeline.fingerprints.harvest import harvest
from pipeline.fingerprints.learn import LearnedFingerprint, learn
from pipeline.fingerprints.models import formats_on, model_of
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName, is_model


class Tier(StrEnum):
    """How a trait compares.

    `open`: proven in neither. `unseen`: committed as proven, and no answer of these names a value.
    """

    CHANGED = "changed"
    LOST = "lost"
    NEW = "new"
    SAME = "same"
    UNSEEN = "unseen"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Change:
    """One trait, before and now; None where absent."""

    tier: Tier
    trait: str
    before: Trait | None
    now: Trait | None

    def line(self) -> str:
        """Return a line for people."""
        return f"  {self.tier:8} {self.trait:26} {_shown(self.before)} -> {_shown(self.now)}"


def changes(before: Fingerprint | None, now: Fingerprint, *, few: bool = False) -> list[Change]:
    """Return every trait of either, changes first.

    `few`: so few answers prove nothing, so that nothing can be lost.
    """
    old = before.traits if before else {}
    names = sorted({*old, *now.traits} - {TraitName.SAME_COUNT_MISMATCH})
    found = [
        Change(tier_of(old.get(name), now.traits.get(name), few=few), name, old.get(name), now.traits.get(name))
        for name in names
    ]
    return sorted(found, key=lambda change: list(Tier).index(change.tier))


def tier_of(before: Trait | None, now: Trait | None, *, few: bool) -> Tier:
    """Return how a trait compares with what it was."""
    was = before if before is not None and before.proven else None
    value = None if now is None else now.value
    if was is None:
        return Tier.NEW if now is not None and now.proven else Tier.OPEN
    if value is None:
        return Tier.UNSEEN if few else Tier.LOST
    if json.dumps(value, sort_keys=True) != json.dumps(was.value, sort_keys=True):  # in which False is no 0
        return Tier.CHANGED
    return Tier.SAME if few or (now is not None and now.proven) else Tier.LOST


def _shown(trait: Trait | None) -> str:
    if trait is None:
        return "absent"
    return f"{json.dumps(trait.value, ensure_ascii=False)} (n={trait.n}{'' if trait.proven else ', not proven'})"


def learned_from(
    exchanges: Sequence[Exchange], tokenizer: str | None = None
) -> tuple[list[LearnedFingerprint], list[str]]:
    """Return the fingerprints of these exchanges, and their account.

    Raises FormatError, TokenizerError.
    """
    names = dict.fromkeys(model.format for one in exchanges if (model := model_of(one.model)) is not None)
    formats = formats_on({name: open_format(name, tokenizer) for name in names})
    found = harvest(exchanges, formats)
    return learn(found), [*found.said()]


def as_asked(learned: LearnedFingerprint, asked: Sequence[str]) -> Fingerprint:
    """Return the fingerprint under the slug that was asked.

    A run looks it up by that slug.
    """
    provider, answered, stream = learned.route
    model = next((slug for slug in asked if is_model(slug, answered)), answered)
    return Fingerprint(provider, model, stream, {str(name): one.trait for name, one in learned.traits.items()})


def same_route(fingerprint: Fingerprint, known: Sequence[Fingerprint]) -> Fingerprint | None:
    """Return the committed fingerprint of the same route.

    The same provider, model and form.
    """
    route = (fingerprint.provider, fingerprint.model, fingerprint.stream)
    return next((one for one in known if (one.provider, one.model, one.stream) == route), None)


def table(fingerprint: Fingerprint, found: Sequence[Change]) -> Iterator[str]:
    """Yield lines to read: the route, then its changes."""
    form = "stream" if fingerprint.stream else "json"
    yield f"{fingerprint.provider} {fingerprint.model} {form}"
    yield from (change.line() for change in found)


def lines_of(fingerprint: Fingerprint, recorded_at: str, source: str = "emulator") -> Iterator[str]:
    """Yield the file's lines: one trait each.

    Keys stand in the order of the command `fingerprint --json`.
    """
    for name, trait in sorted(fingerprint.traits.items()):
        line = {
            "provider": fingerprint.provider,
            "model": fingerprint.model,
            "stream": fingerprint.stream,
            "trait": name,
            "value": trait.value,
            "n": trait.n,
            "proven": trait.proven,
            "counterexamples": [],
            "source": source,
            "recorded_at": recorded_at,
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"
