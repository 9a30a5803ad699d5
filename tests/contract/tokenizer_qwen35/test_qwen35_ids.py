"""The real Qwen3.5 vocabulary: ids that were published, and what the `tokenizers` library makes of a text."""

from __future__ import annotations

import pytest

from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import open_format

pytestmark = pytest.mark.contract

TOKENIZER = open_format("qwen3.5").tokenizer


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "40 2908 2597 220 16 17 18 19 20 2433 25 91603 571 50203 11 220 96748 321 184545 1710 78035 220 413 "
    "830 606 220 16 25 198 197 18221 1596 6 3950 18221 10838 229 111 9008 158830 9008 239 102 373 235 "
    "9008 239 102 373 235 9008 239 100 149518 84237 150104 153348 181204 5074 2834 256",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<|im_start|>": 248045,
        "<|im_end|>": 248046,
        "<tool_call>": 248058,
        "</tool_call>": 248059,
        "<think>": 248068,
        "</think>": 248069,
    },
)


def test_a_token_that_no_merge_makes_is_read_and_never_written() -> None:
    """201 phrases stand in the vocabulary without a merge, so the model's own tokenizer never writes them."""
    unmerged = TOKENIZER.rules.unmerged
    phrase = "俱乐部".encode()

    assert 201 == len(unmerged)
    assert unmerged[phrase] not in TOKENIZER.encode("俱乐部")
    assert "俱乐部" == TOKENIZER.decode_text([unmerged[phrase]])
    assert unmerged[phrase] == TOKENIZER.id_of_bytes(phrase)
