"""Ids, seen as each provider shows them, come back or are refused: on the real DeepSeek-R1 vocabulary."""

from __future__ import annotations

from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestDeepseekR1(CallTrips):
    fmt = open_format("deepseek-r1")
    call = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>set\n```json\n"
        '{"on": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
