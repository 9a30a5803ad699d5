"""What moved between two fingerprints: the tiers, and what a handful of answers can say."""

from __future__ import annotations

import pytest

from harness.live.fingerprint_diff import Tier, changes, table
from pipeline.proof.fingerprint import Fingerprint, Trait
from pipeline.records import Json


def trait(value: Json, *, proven: bool = True, n: int = 30) -> Trait:
    return Trait(value, n, proven)


def of(one: Trait | None) -> Fingerprint:
    return Fingerprint("P", "m/k", stream=False, traits={} if one is None else {"seam_space": one})


@pytest.mark.parametrize(
    "before, now, tier, few",
    [
        (None, trait("kept"), Tier.NEW, Tier.NEW),
        (trait("kept", proven=False), trait("kept"), Tier.NEW, Tier.NEW),
        (None, trait("kept", proven=False), Tier.OPEN, Tier.OPEN),
        (trait("kept", proven=False), trait("stripped", proven=False), Tier.OPEN, Tier.OPEN),
        (trait("kept"), trait("kept"), Tier.SAME, Tier.SAME),
        (trait("kept"), trait("kept", proven=False, n=2), Tier.LOST, Tier.SAME),
        (trait("kept"), trait("stripped", proven=False, n=2), Tier.CHANGED, Tier.CHANGED),
        (trait("kept"), trait("stripped"), Tier.CHANGED, Tier.CHANGED),
        (trait("kept"), trait(None, proven=False, n=0), Tier.LOST, Tier.UNSEEN),
        (trait("kept"), None, Tier.LOST, Tier.UNSEEN),
    ],
)
def test_a_trait_falls_into_one_tier(before: Trait | None, now: Trait | None, tier: Tier, few: Tier) -> None:
    assert [tier] == [change.tier for change in changes(of(before), of(now))]
    assert [few] == [change.tier for change in changes(of(before), of(now), few=True)]


def test_without_a_committed_fingerprint_all_proven_is_new() -> None:
    """Without a committed fingerprint all that is proven is new."""
    assert [Tier.NEW] == [change.tier for change in changes(None, of(trait("kept")))]


def test_a_value_that_is_a_list_is_compared_by_what_it_holds() -> None:
    """JSON has no tuples, so a list read back is equal to the list that was learned."""
    one = Fingerprint("P", "m", stream=False, traits={"prompt_prefix": trait(["[BOS]"])})
    other = Fingerprint("P", "m", stream=False, traits={"prompt_prefix": trait([])})

    assert [Tier.SAME] == [change.tier for change in changes(one, one)]
    assert [Tier.CHANGED] == [change.tier for change in changes(one, other)]


def test_false_is_another_value_than_zero() -> None:
    one = Fingerprint("P", "m", stream=False, traits={"end_token_counted": trait(value=False)})
    other = Fingerprint("P", "m", stream=False, traits={"end_token_counted": trait(0)})

    assert [Tier.CHANGED] == [change.tier for change in changes(one, other)]


def test_what_no_probe_measures_is_compared_with_nothing() -> None:
    one = Fingerprint("P", "m", stream=False, traits={"same_count_mismatch": trait({"wrong": 1})})

    assert [] == changes(one, of(None))


def test_changes_come_first_and_each_is_a_line() -> None:
    before = Fingerprint("P", "m/k", stream=True, traits={"a": trait("x"), "b": trait("x")})
    now = Fingerprint("P", "m/k", stream=True, traits={"a": trait("x"), "b": trait("y", proven=False, n=4)})

    assert [
        "P m/k stream",
        '  changed  b                          "x" (n=30) -> "y" (n=4, not proven)',
        '  same     a                          "x" (n=30) -> "x" (n=30)',
    ] == list(table(now, changes(before, now)))
