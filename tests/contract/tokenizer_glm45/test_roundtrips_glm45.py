"""Ids, seen as each provider shows them, come back as they were or are refused: on the real GLM-4.5 vocabulary."""

from __future__ import annotations

import pytest

from harness.strategies import suite as suites
from harness.strategies.contract import CallTrips
from pipeline.formats.registry import open_format


class TestGlm45(CallTrips):
    fmt = open_format("glm-4.5")
    call = "<tool_call>set\n<arg_key>on</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"


@pytest.mark.contract
def test_glm_4_7_gives_every_canonical_answer_back() -> None:
    suites.exact_anywhere(open_format("glm-4.7"))()


@pytest.mark.contract
def test_glm_4_7_is_never_rebuilt_wrong() -> None:
    suites.never_wrong_anywhere(open_format("glm-4.7"))()
