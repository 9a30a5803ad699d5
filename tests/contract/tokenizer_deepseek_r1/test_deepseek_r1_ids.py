"""The real DeepSeek-R1 vocabulary: ids that were published, and what the `tokenizers` library makes of a text."""

from __future__ import annotations

import pytest

from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import open_format

pytestmark = pytest.mark.contract

TOKENIZER = open_format("deepseek-r1").tokenizer


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "43 5270 3557 223 6895 1883 2924 28 112752 57664 14 223 3427 305 223 4549 7245 2298 12457 2841 320 "
    "204 271 223 855 1527 2606 223 19 1137 200 47523 2581 9 3699 47523 77579 114 43754 115 25730 105 "
    "46088 25730 105 46088 25730 103 23597 12524 70223 6011 223 39311 18611 6909 262",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<｜begin▁of▁sentence｜>": 0,
        "<｜end▁of▁sentence｜>": 1,
        "<think>": 128798,
        "</think>": 128799,
        "<｜User｜>": 128803,
        "<｜Assistant｜>": 128804,
        "<｜tool▁calls▁begin｜>": 128806,
        "<｜tool▁calls▁end｜>": 128807,
        "<｜tool▁sep｜>": 128814,
    },
)
