"""Ids, seen as each provider shows them, come back or are refused: on the real DeepSeek-V3.1 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestDeepseekV31(CallTrips):
    fmt = open_format("deepseek-v3.1")
    call = (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>set<｜tool▁sep｜>{"on": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
