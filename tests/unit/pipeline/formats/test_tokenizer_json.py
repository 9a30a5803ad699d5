"""`tokenizer.json` files: what is refused of them, and the pinned ones split text as the `tokenizers` library does."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings

from harness.fixtures.vocabularies import COUNTER_FOLDERS
from harness.strategies.completions import AWKWARD, texts
from pipeline.formats.tokenizer import Tokenizer, TokenizerError
from pipeline.formats.tokenizer_json import GPT_OSS_SHA256, PATTERNS, SMOLLM_2_SHA256, load_tokenizer_json
from pipeline.records import Reason, RefusedError

PINNED = {
    **{folder: packed.sha256 for folder, packed in COUNTER_FOLDERS.items()},
    "gpt-oss": GPT_OSS_SHA256,
    "smollm2": SMOLLM_2_SHA256,
}
NUMBER_PATTERN = next(pattern for stages, pattern in PATTERNS.items() if len(stages) == 1)


def small(**changes: object) -> dict[str, Any]:
    """A vocabulary of three merged letters and one control token, in the form of GLM's file."""
    letters = {letter: token for token, letter in enumerate(_letters())}
    size = len(letters)
    model = {"type": "BPE", "vocab": {**letters, "ab": size, "abc": size + 1}, "merges": ["a b", "ab c"]}
    empty = {"dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    flags = {"lstrip": False, "rstrip": False, "single_word": False}
    split = {"type": "Split", "pattern": {"Regex": NUMBER_PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "model": {**model, **empty},
        "added_tokens": [{"id": size + 2, "content": "<end>", **flags}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        **changes,
    }


def _letters() -> Iterator[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    yield from map(chr, printable)
    yield from (chr(0x100 + k) for k in range(256 - len(printable)))


def load(folder: Path, file: object) -> Tokenizer:
    folder.joinpath("tokenizer.json").write_text(json.dumps(file))
    return load_tokenizer_json(folder)


def test_merges_and_control_tokens_have_the_ids_of_the_file(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, small())

    assert [257, 64, 65] == tokenizer.encode("abcab"[:3] + "ab")[:1] + tokenizer.encode("a b")[::2]
    assert [256, 258] == tokenizer.encode_prompt("ab<end>")
    assert 258 not in tokenizer.encode("<end>")
    assert ("<end>", None, 259) == (tokenizer.name_of(258), tokenizer.name_of(257), tokenizer.size)


def _changed(part: str, **changes: object) -> dict[str, Any]:
    file = small()
    return {**file, part: {**file[part], **changes}}


def _stripping() -> dict[str, Any]:
    file = small()
    return {**file, "added_tokens": [{**file["added_tokens"][0], "lstrip": True}]}


def _other_pattern() -> dict[str, Any]:
    file = small()
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\W+"
    return file


@pytest.mark.parametrize(
    "file, said",
    [
        (_changed("model", dropout=0.1), "a model that is not proven"),
        (_changed("model", byte_fallback=True), "a model that is not proven"),
        (_changed("model", merges=["ab c", "a b"]), "merges are not in the order"),
        (small(normalizer={"type": "Lowercase"}), "a normaliser that is not proven"),
        (_other_pattern(), "a pattern that is not proven"),
        (_stripping(), "an added token '<end>' with flags that is not proven"),
        (
            small(added_tokens=[{"id": 900, "content": "x", "lstrip": 0, "rstrip": 0, "single_word": 0}]),
            "without holes",
        ),
        ({}, "not a tokenizer.json"),
    ],
    ids=["dropout", "byte fallback", "order of merges", "lower case", "pattern", "lstrip", "holes", "empty"],
)
def test_a_file_that_is_not_proven_is_refused(tmp_path: Path, file: object, said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        load(tmp_path, file)


def test_a_byte_level_without_stages_splits_as_gpt_2(tmp_path: Path) -> None:
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    tokenizer = load(tmp_path, small(pre_tokenizer=level))

    assert [256, *tokenizer.encode("!"), 256] == tokenizer.encode("ab!ab")
    with pytest.raises(TokenizerError, match="a ByteLevel that is not proven"):
        load(tmp_path, small(pre_tokenizer={**level, "add_prefix_space": True}))


def test_text_with_a_byte_of_no_token_is_refused(tmp_path: Path) -> None:
    """The library leaves such a byte out, and so changes the text."""
    file = small()
    letters = [letter for letter in file["model"]["vocab"] if letter != "\u0104"]
    file["model"]["vocab"] = {letter: token for token, letter in enumerate(letters)}
    file["added_tokens"][0]["id"] = len(letters)
    tokenizer = load(tmp_path, file)

    assert {4} == tokenizer.missing_bytes
    with pytest.raises(RefusedError, match="no token for the byte 0x04 of character 2") as refused:
        tokenizer.encode("\u00e9a\x04")
    assert (Reason.UNENCODABLE, 2) == (refused.value.refusal.reason, refused.value.refusal.char_offset)


def test_another_hash_is_refused(tmp_path: Path) -> None:
    load(tmp_path, small())
    with pytest.raises(TokenizerError, match="wanted 0000"):
        load_tokenizer_json(tmp_path, expect_sha256="0000")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer there"):
        load_tokenizer_json(tmp_path)


@pytest.mark.parametrize("text, at", [("cafe\u0301", 3), ("\u212b", 0), ("a\u0301\u0323", 0)])
def test_text_that_nfc_changes_is_refused(tmp_path: Path, text: str, at: int) -> None:
    """Text that NFC changes is refused where the file normalises."""
    tokenizer = load(tmp_path, small(normalizer={"type": "NFC"}))
    with pytest.raises(RefusedError) as refused:
        tokenizer.encode(text)

    assert (Reason.NOT_NFC, at) == (refused.value.refusal.reason, refused.value.refusal.char_offset)
    assert tokenizer.encode("caf\u00e9") == load(tmp_path, small()).encode("caf\u00e9")


def material(folder: str) -> Path:
    """Where the pinned file lies, or a skip that says how to get it."""
    pytest.importorskip("tokenizers", reason="the oracle is not installed")
    for named in filter(None, os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep)):
        if (Path(named) / folder / "tokenizer.json").is_file():
            return Path(named) / folder
    pytest.skip(f"no {folder} in $DRAFTER_GATE_TOKENIZERS; python -m harness vocabularies unpacks it")


Splits: TypeAlias = "tuple[Tokenizer, Callable[[list[str]], list[list[int]]]]"


@pytest.fixture(scope="module", params=PINNED)
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(folder: str) -> Splits:
    """Ours, and the library on the same file without its added tokens: text alone, as a model's output is split."""
    import tokenizers

    file = json.loads((material(folder) / "tokenizer.json").read_text())
    theirs = tokenizers.Tokenizer.from_str(json.dumps({**file, "added_tokens": [], "post_processor": None}))
    ours = load_tokenizer_json(material(folder), expect_sha256=PINNED[folder])
    return ours, lambda given: [found.ids for found in theirs.encode_batch_fast(given, add_special_tokens=False)]


def differing(ours: Tokenizer, theirs: Callable[[list[str]], list[list[int]]], given: list[str]) -> list[str]:
    """The texts whose ids differ; what ours refuses as not NFC, or for a missing byte, the library must change."""
    found = []
    for text, ids in zip(given, theirs(given), strict=True):
        try:
            same = ids == ours.encode(text)
        except RefusedError as error:
            lacks = error.refusal.reason is Reason.UNENCODABLE and ours.decode_bytes(ids) != text.encode()
            same = error.refusal.reason is Reason.NOT_NFC or lacks
        found += [] if same else [text]
    return found


def test_tokens_and_characters_split_as_in_the_library(pair: Splits) -> None:
    """Every token and every character is split as the library splits it."""
    ours, theirs = pair
    pieces = [ours.token_bytes(token).decode(errors="ignore") for token in ours.base_ids]
    planes = [chr(code) for code in (*range(0x3400), *range(0x3400, 0x20000, 11)) if not 0xD800 <= code < 0xE000]
    around = [f"a{char}b {char}{char}1{char}2  {char}\u3042{char}\n{char}!" for char in planes]

    assert [] == differing(ours, theirs, pieces)
    assert [] == differing(ours, theirs, around)


def test_awkward_text_is_split_as_the_library_splits_it(pair: Splits) -> None:
    ours, theirs = pair
    draw = random.Random(0)
    drawn = ["".join(draw.choices(AWKWARD, k=draw.randint(1, 12))) for _ in range(2000)]

    assert [] == differing(ours, theirs, drawn)


def test_drawn_text_is_split_as_the_library_splits_it(pair: Splits) -> None:
    ours, theirs = pair

    @settings(suppress_health_check=list(HealthCheck), deadline=None)
    @given(text=texts())
    def check(text: str) -> None:
        assert [] == differing(ours, theirs, [text])

    check()


def test_a_whole_prompt_is_encoded_as_the_library_encodes_it(folder: str, pair: Splits) -> None:
    """Control tokens that the text spells are control tokens here, all of them, side by side and inside words."""
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(material(folder) / "tokenizer.json"))
    ours, _ = pair
    draw = random.Random(1)
    spelled = [*ours.control_names, *AWKWARD]
    drawn = ["".join(draw.choices(spelled, k=draw.randint(1, 9))) for _ in range(2000)]
    ours_do = [text for text in drawn if not ours.rules.nfc or _is_nfc(text)]

    assert [theirs.encode(text, add_special_tokens=False).ids for text in ours_do] == [
        ours.encode_prompt(text) for text in ours_do
    ]
    assert [theirs.token_to_id(name) for name in ours.control_names] == [
        ours.id_of(name) for name in ours.control_names
    ]


def _is_nfc(text: str) -> bool:
    import unicodedata

    return unicodedata.is_normalized("NFC", text)


def test_text_that_the_library_would_normalise_is_refused() -> None:
    """Every character, after a letter and before marks of other classes."""
    import tokenizers

    ours = load_tokenizer_json(material("qwen3"))
    normal = tokenizers.normalizers.NFC()
    planes = [chr(code) for code in (*range(0x3400), *range(0x3400, 0x30000, 7)) if not 0xD800 <= code < 0xE000]
    missed = []
    for char in planes:
        text = f"a{char}\u0334\u0301"
        if normal.normalize_str(text) != text:
            try:
                ours.encode(text)
            except RefusedError:
                continue
            missed.append(text)

    assert [] == missed
