"""Ids, seen as each provider shows them, come back or are refused: on the real DeepSeek-R1 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import RoundTrips
from pipeline.formats.registry import open_format


class TestDeepseekR1(RoundTrips):
    fmt = open_format("deepseek-r1")
