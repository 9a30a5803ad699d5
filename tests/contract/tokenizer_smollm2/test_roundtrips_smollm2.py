"""Ids, seen as each provider shows them, come back as they were or are refused: on the real SmolLM2 vocabulary."""

from __future__ import annotations

import pytest

from harness.strategies import suite as suites
from harness.views.roundtrip import RoundTrip
from harness.views.view import Profile
from pipeline.formats.registry import open_format

pytestmark = pytest.mark.contract

FORMAT = open_format("smollm2")


def test_parse_is_the_inverse_of_assemble() -> None:
    suites.inverse(FORMAT)()


def test_assemble_is_the_inverse_of_parse_or_it_refuses() -> None:
    suites.inverse_or_refusal(FORMAT)()


@pytest.mark.parametrize("profile, stream", suites.ROUTES, ids=lambda value: getattr(value, "slug", str(value)))
def test_no_answer_is_rebuilt_wrong(profile: Profile, stream: bool) -> None:
    suites.never_wrong(FORMAT, profile, stream=stream)()


@pytest.mark.parametrize("trip", suites.LOSSLESS, ids=lambda trip: trip.name)
def test_lossless_views_give_every_canonical_answer_back(trip: RoundTrip) -> None:
    suites.exact(FORMAT, trip)()


@pytest.mark.parametrize("trip", suites.LOSSY, ids=lambda trip: trip.name)
def test_views_that_lose_white_space_are_refused(trip: RoundTrip) -> None:
    suites.refused(FORMAT, trip)()
