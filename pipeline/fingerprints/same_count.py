"""How often a route's answers are another tokenisation of the same length, which `counted` takes for the canonical one.

Guarantees: measured on streams whose deltas are their tokens, one by one, and of those on the answers whose count
closes with the text encoded again, since `counted` takes no others.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.binomial import upper_bound
from pipeline.fingerprints.counts import Counting
from pipeline.fingerprints.observations import Observed, named
from pipeline.fingerprints.votes import ENOUGH, Learned
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Json


def same_count_traits(seen: Sequence[Observed], counting: Counting) -> dict[TraitName, Learned]:
    """`{wrong, n, upper95}`, with the wrong ones told; nothing where no deltas are tokens."""
    spelled = [one for one in seen if one.sum and one.sum.spelled == one.sum.text and _closes(one, counting)]
    if not spelled:
        return {}
    wrong = [one for one in spelled if one.sum and not one.sum.canonical]
    n = len(spelled)
    value: Json = {"wrong": len(wrong), "n": n, "upper95": round(upper_bound(len(wrong), n), 6)}
    lacks = () if n >= ENOUGH else (f"{n} of {ENOUGH} answers",)
    against = tuple(named(one, None, "its deltas spell as many tokens, and others", certain=True) for one in wrong)
    return {TraitName.SAME_COUNT_MISMATCH: Learned(Trait(value, n, proven=not lacks), against, lacks)}


def _closes(one: Observed, counting: Counting) -> bool:
    hidden = counting.hidden(one.sum) if one.sum else None
    return one.sum is not None and hidden is not None and one.sum.extra == hidden
