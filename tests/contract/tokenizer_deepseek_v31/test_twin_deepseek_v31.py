"""The twin of a real answer that was not tokenised as its text is, on the real vocabulary."""

from __future__ import annotations

import pytest

from harness.fixtures.non_canonical import CONTENT, REASONING, TOTAL, rebuilt, twin, twin_ids
from pipeline.formats.registry import open_format
from pipeline.records import Evidence, Reason, Refusal, TokenRow

pytestmark = pytest.mark.contract

FORMAT = open_format("deepseek-v3.1")


def test_its_text_encoded_again_is_a_token_shorter() -> None:
    completion, encode = twin(FORMAT), FORMAT.tokenizer.encode

    assert (REASONING, CONTENT - 1) == (len(encode(completion.reasoning or "")), len(encode(completion.content or "")))
    assert REASONING + CONTENT == len(completion.deltas or ())
    assert completion.usage is not None
    assert TOTAL == completion.usage.completion_tokens == REASONING + CONTENT + 2


def test_its_deltas_give_the_ids_that_were_emitted() -> None:
    row = rebuilt(FORMAT, by_deltas=True)

    assert isinstance(row, TokenRow)
    assert (Evidence.STREAM_DELTAS, twin_ids(FORMAT)) == (row.evidence, row.output_ids)


def test_its_count_alone_refuses_it() -> None:
    refusal = rebuilt(FORMAT, by_deltas=False)

    assert isinstance(refusal, Refusal)
    assert (Reason.COUNT_MISMATCH, "rebuilt 305 tokens, the provider counted 306") == (refusal.reason, refusal.detail)
