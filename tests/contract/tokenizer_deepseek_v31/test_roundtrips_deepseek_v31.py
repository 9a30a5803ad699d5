"""Ids, seen as each provider shows them, come back or are refused: on the real DeepSeek-V3.1 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import RoundTrips
from pipeline.formats.registry import open_format


class TestDeepseekV31(RoundTrips):
    fmt = open_format("deepseek-v3.1")
