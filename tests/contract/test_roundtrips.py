"""Ids, seen as each provider shows them, come back as they were or are refused: on the compact vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestTiny(CallTrips):
    fmt = open_format("tiny-kimi")
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.set:0<|tool_call_argument_begin|>"
        '{"on": 1}<|tool_call_end|><|tool_calls_section_end|>'
    )
