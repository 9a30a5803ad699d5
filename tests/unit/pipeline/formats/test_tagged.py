"""Properties of the tagged families on single bytes; the contract holds them on real vocabularies."""

from __future__ import annotations

import pytest

from harness.fixtures.tagged import DIALECTS, tagged_format
from harness.strategies import suite as suites
from harness.views.view import PROFILES


@pytest.mark.parametrize("name", DIALECTS)
def test_parse_and_assemble_are_each_others_inverse(name: str) -> None:
    fmt = tagged_format(DIALECTS[name], nfc=name.startswith("qwen"))
    suites.inverse(fmt)()
    suites.inverse_or_refusal(fmt)()


@pytest.mark.parametrize("name", DIALECTS)
def test_no_body_is_rebuilt_wrong(name: str) -> None:
    fmt = tagged_format(DIALECTS[name], nfc=name.startswith("qwen"))
    suites.never_wrong(fmt, PROFILES["chutes"], stream=False)()
