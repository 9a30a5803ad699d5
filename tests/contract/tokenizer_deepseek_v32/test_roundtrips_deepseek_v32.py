"""Ids, seen as each provider shows them, come back or are refused: on the real DeepSeek-V3.2 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestDeepseekV32(CallTrips):
    fmt = open_format("deepseek-v3.2")
    call = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="set">\n<｜DSML｜parameter name="on" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )
