"""Ids, seen as each provider shows them, come back as they were or are refused: on the real GLM-5 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestGlm5(CallTrips):
    fmt = open_format("glm-5")
    call = "<tool_call>set<arg_key>on</arg_key><arg_value>1</arg_value></tool_call>"
