"""Vocabulary files, and what is refused of them and by them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.tokenizer import PIECE_CHARS, RUN_CHARS, Tokenizer, TokenizerError, load_tokenizer, prompt_pieces
from pipeline.records import Reason, RefusedError

pytestmark = pytest.mark.contract


def write(folder: Path, *, ranks: bytes | None = None, added: object = None) -> Path:
    lines = [base64.b64encode(bytes([byte])) + f" {byte}".encode() for byte in range(256)]
    folder.joinpath("tiktoken.model").write_bytes(b"\n".join(lines) if ranks is None else ranks)
    named = {"256": {"content": "[BOS]"}, "258": {"content": "<|im_end|>"}} if added is None else added
    folder.joinpath("tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": named}))
    return folder


@pytest.fixture
def bytes_only(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(write(tmp_path))


def test_control_tokens_follow_the_base_named_or_reserved(bytes_only: Tokenizer) -> None:
    assert (256, 258, 511) == tuple(map(bytes_only.id_of, ("[BOS]", "<|im_end|>", "<|reserved_token_511|>")))
    assert (256, 512) == (bytes_only.base_size, bytes_only.size)
    assert ("<|im_end|>", None) == (bytes_only.name_of(258), bytes_only.name_of(7))


def test_an_unknown_name_is_an_error(bytes_only: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="no control token"):
        bytes_only.id_of("<|nothing|>")


def test_text_that_spells_a_control_token_is_text(bytes_only: Tokenizer) -> None:
    assert list(b"<|im_end|>") == bytes_only.encode("<|im_end|>")
    assert [258] == bytes_only.encode_prompt("<|im_end|>")
    assert (2, "<|im_end|>") == bytes_only.find_control("a <|im_end|>")


@pytest.mark.parametrize(
    "text, reason",
    [("a\ud83d", Reason.LONE_SURROGATE), (" " * 1_000_001, Reason.UNENCODABLE)],
    ids=["half a pair", "a million spaces"],
)
def test_text_without_ids_is_refused(bytes_only: Tokenizer, text: str, reason: Reason) -> None:
    with pytest.raises(RefusedError) as refused:
        bytes_only.encode(text)

    assert reason is refused.value.refusal.reason


def test_pieces_are_the_bytes_of_each_token(bytes_only: Tokenizer) -> None:
    """Pieces are the bytes of each token and of control tokens their names."""
    assert [b"a", b"<|im_end|>", b"\xff"] == bytes_only.pieces([97, 258, 255])


@pytest.mark.parametrize("bad", [512, -1, 2**40])
def test_pieces_of_an_unknown_id_are_refused(bytes_only: Tokenizer, bad: int) -> None:
    with pytest.raises(RefusedError, match="outside"):
        bytes_only.pieces([97, bad])


def test_remembered_texts_give_the_same_ids(bytes_only: Tokenizer) -> None:
    """Remembered texts give the same ids whatever became of those given before."""
    with bytes_only.remembering():
        bytes_only.encode("ab").clear()
        again = bytes_only.encode("ab")
        with pytest.raises(RefusedError):
            bytes_only.encode("\ud83d")

    assert list(b"ab") == again == bytes_only.encode("ab")


@pytest.mark.parametrize("bad", [512, -1, 2**40])
def test_an_id_outside_the_vocabulary_is_refused_with_its_place(bytes_only: Tokenizer, bad: int) -> None:
    with pytest.raises(RefusedError) as refused:
        bytes_only.decode_bytes([7, bad])

    assert (Reason.UNKNOWN_ID, 1) == (refused.value.refusal.reason, refused.value.refusal.token_position)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_come_back(text: str) -> None:
    fmt = Tokenizer(Path("made"), {bytes([b]): b for b in range(256)}, [f"<|{n}|>" for n in range(256)], "0" * 64)

    assert text.encode() == fmt.decode_bytes(fmt.encode(text))


# Files


def test_a_missing_file_says_how_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="--tokenizer DIR"):
        load_tokenizer(tmp_path)


def test_a_wrong_hash_names_both(tmp_path: Path) -> None:
    found = load_tokenizer(write(tmp_path)).sha256

    with pytest.raises(TokenizerError) as error:
        load_tokenizer(tmp_path, expect_sha256="ab" * 32)

    assert found in str(error.value)
    assert "ab" * 32 in str(error.value)


@pytest.mark.parametrize(
    "ranks", [b"YQ== 0\nnot a line\n", b"YQ== 0\nYg== 2\n", b"?? 0\n"], ids=["line", "hole", "base64"]
)
def test_a_damaged_vocabulary_is_an_error(tmp_path: Path, ranks: bytes) -> None:
    with pytest.raises(TokenizerError):
        load_tokenizer(write(tmp_path, ranks=ranks))


@pytest.mark.parametrize("added", [[], {"7": {"content": "x"}}, {"x": {}}], ids=["list", "outside", "no id"])
def test_control_tokens_that_are_not_in_their_range_are_an_error(tmp_path: Path, added: object) -> None:
    with pytest.raises(TokenizerError):
        load_tokenizer(write(tmp_path, added=added))


# Pieces of a prompt


def test_short_prompts_are_one_piece() -> None:
    assert ["a" * RUN_CHARS] == list(prompt_pieces("a" * RUN_CHARS))


def test_a_long_run_is_cut_and_the_counter_starts_again_at_one() -> None:
    lengths = [len(piece) for piece in prompt_pieces("a" * (2 * RUN_CHARS + 1))]

    assert [RUN_CHARS, RUN_CHARS, 1] == lengths


def test_runs_are_of_pythons_own_white_space() -> None:
    """U+001C is white space for str.isspace, though not for the pattern."""
    text = "a" * 20_000 + "\x1c" + "a" * 20_000

    assert [text] == list(prompt_pieces(text))


def test_every_prompt_is_cut_at_400_000_characters() -> None:
    text = "ab " * (PIECE_CHARS // 2)
    pieces = list(prompt_pieces(text))

    assert text == "".join(pieces)
    assert [PIECE_CHARS, len(text) - PIECE_CHARS] == [len(piece) for piece in pieces]
