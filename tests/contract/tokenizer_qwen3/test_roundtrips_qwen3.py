"""Ids, seen as each provider shows them, come back as they were or are refused: on the real Qwen3 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestQwen3(CallTrips):
    fmt = open_format("qwen3")
    call = '<tool_call>\n{"name": "set", "arguments": {"on": 1}}\n</tool_call>'
