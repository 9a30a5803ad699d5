"""Deltas as tokens: which streams spell exactly one sequence, and which hide bytes."""

from __future__ import annotations

import base64
import json

import pytest

from pipeline.deltas import may_hide_bytes
from pipeline.records import RefusedError
from pipeline.tokenizers import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """All bytes, two words, and a space with the first half of an emoji, as Kimi's own vocabulary has."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokens = [*(bytes([value]) for value in range(256)), b"ab", b" a", b"\xf0\x9f", b" \xf0\x9f"]
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_text("".join(lines), "ascii")
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {}}), "ascii")
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    "text, hides",
    [(" ", True), ("ab ", True), ("ab", False), (" a", False), ("", False), ("🎈", False), ("é ", True)],
)
def test_a_cut_stream_hides_bytes_where_its_last_token_may_have_begun_a_character(
    vocabulary: Tokenizer, text: str, hides: bool
) -> None:
    assert hides == may_hide_bytes(vocabulary, text)


def test_half_a_surrogate_pair_is_refused(vocabulary: Tokenizer) -> None:
    with pytest.raises(RefusedError, match="lone surrogate"):
        may_hide_bytes(vocabulary, "\ud83d")
