"""Ids, seen as each provider shows them, come back as they were or are refused: on the real Qwen3.5 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestQwen35(CallTrips):
    fmt = open_format("qwen3.5")
    call = "<tool_call>\n<function=set>\n<parameter=on>\n1\n</parameter>\n</function>\n</tool_call>"
