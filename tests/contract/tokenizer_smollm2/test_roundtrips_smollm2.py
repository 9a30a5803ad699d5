"""Ids, seen as each provider shows them, come back as they were or are refused: on the real SmolLM2 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import RoundTrips
from pipeline.formats.registry import open_format


class TestSmolLM2(RoundTrips):
    fmt = open_format("smollm2")
