"""A Hugging Face `tokenizer.json` as our Tokenizer.

Guarantees: byte-pair ranks are taken from the file's vocabulary, and only a file whose every stage is known to split
text as tiktoken does is taken; tests hold each pinned file equal to `tokenizers` id for id. Refuses other models,
normalisers, pre-tokenizers and added tokens that eat the space beside them, since nothing proves those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from pipeline.formats.tokenizer import Rules, Tokenizer, TokenizerError

FILE_NAME = "tokenizer.json"
GLM_4_SHA256 = "9340665016419c825c4bdabbcc9acc43b7ca2c68ce142724afa829abb1be5efd"
"""GLM-4.5, 4.5-Air, 4.5V, 4.6, 4.6V and 4.7."""
GLM_5_SHA256 = "19e773648cb4e65de8660ea6365e10acca112d42a854923df93db4a6f333a82d"
"""GLM-5, 5.1, 5.2 and 4.7-Flash."""
QWEN_3_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
QWEN_35_SHA256 = "5f9e4d4901a92b997e463c1f46055088b6cca5ca61a6522d1b9f64c4bb81cb42"
"""Qwen3.5 and 3.6."""
DEEPSEEK_R1_SHA256 = "ecb6f9fc369894346f0511f4074ca75cee5cd5f3b06d02f1ba35fcd39f8e121d"
DEEPSEEK_V31_SHA256 = "32b34a41212e92f62e859cbbea121ae705a1fabbf157d9acf22d134ecd8dcf70"
"""DeepSeek-V3.1, V3.1-Terminus and V3.2-Exp."""
DEEPSEEK_V32_SHA256 = "cd050be35cae877f8f0aa847f45aa87e23835a56ca32b29b28545597852784e5"
GPT_OSS_SHA256 = "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"
SMOLLM_2_SHA256 = "bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4"
"""SmolLM2, as `python -m harness smollm` writes it."""

_CASED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GLM = _CASED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN_3 = _GLM.replace("{1,3}", "")
_QWEN_35 = _CASED + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CASED}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CASED}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _SPACES,
    ]
)
_KANA = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK_STAGES = (
    r"\p{N}{1,3}",
    f"[{_KANA}]+",
    (_ASCII_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES).replace(r"\r\n", "\r\n"),
)
_REST = rf"[^\p{{N}}{_KANA}]"
_DEEPSEEK = "|".join(
    [
        r"\p{N}{1,3}",
        rf"[[{_KANA}]&&[^\p{{L}}\p{{P}}\p{{S}}]]?[[{_KANA}]&&[\p{{L}}\p{{M}}]]+",
        rf"[[{_KANA}]&&[\p{{P}}\p{{S}}]]+",
        rf"[[{_KANA}]&&[^\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]+(?![[{_KANA}]&&[\p{{L}}\p{{M}}]])",
        _ASCII_WORD,
        rf"[{_REST}&&[^\r\n\p{{L}}\p{{P}}\p{{S}}]]?[{_REST}&&[\p{{L}}\p{{M}}]]+",
        rf" ?[{_REST}&&[\p{{P}}\p{{S}}]]+[\r\n]*",
        r"\s*[\r\n]+",
        rf"\s+(?![{_REST}&&[^\s]])",
        r"\s+",
        rf"[{_REST}&&[^\s\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]+(?![{_REST}&&[\p{{L}}\p{{M}}]])",
    ]
)
"""DeepSeek's three stages in one pattern.

Each stage splits within the pieces of the one before, so a match stays in one class of characters (numbers, kana and
Han, the rest) and sees the end of its piece where another class begins. What no stage matches (control characters,
unassigned ones) is a piece of its own, up to the last that a letter takes along.
"""

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` splits by where no stage stands before it."""

PATTERNS: Final[Mapping[tuple[str, ...], str]] = {
    (_GLM,): _GLM,
    (_QWEN_3,): _QWEN_3,
    (_QWEN_35,): _QWEN_35,
    (_O200K,): _O200K,
    _DEEPSEEK_STAGES: _DEEPSEEK,
}
"""The `Split` stages of a file, and the one pattern that splits text as they do."""

_File: TypeAlias = dict[str, Any]
"""Parsed JSON, checked as it is read."""

_MODEL: Final[_File] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "fuse_unk": False,
    "byte_fallback": False,
}


def load_tokenizer_json(directory: Path, *, expect_sha256: str | None = None) -> Tokenizer:
    """Read `tokenizer.json`.

    TokenizerError where the hash is not `expect_sha256`, or a stage is not known.
    """
    path = directory / FILE_NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        where = "Give its directory with --tokenizer DIR or $DRAFTER_GATE_TOKENIZERS."
        raise TokenizerError(f"{path}: no tokenizer there ({error.strerror}). {where}") from None
    sha256 = hashlib.sha256(raw).hexdigest()
    if expect_sha256 is not None and sha256 != expect_sha256:
        message = f"{path} has sha256 {sha256}, wanted {expect_sha256}. Give the right directory"
        raise TokenizerError(f"{message} with --tokenizer DIR or $DRAFTER_GATE_TOKENIZERS.")
    try:
        return _tokenizer(orjson.loads(raw), directory, sha256)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerError(f"{path}: not a tokenizer.json ({type(error).__name__}: {error})") from None


def _tokenizer(file: _File, directory: Path, sha256: str) -> Tokenizer:
    control = {str(token["content"]): int(token["id"]) for token in _plain_added(file["added_tokens"], directory)}
    model = file["model"]
    _require(directory, "a model", {key: model.get(key) for key in _MODEL}, [_MODEL])
    base = _base_tokens(model["vocab"], frozenset(control.values()))
    merged = _merged(model["merges"], model["vocab"], directory)
    unmerged = {data: token for data, token in base.items() if len(data) > 1 and token not in merged}
    if unmerged and model.get("ignore_merges"):
        raise TokenizerError(f"{directory / FILE_NAME}: {len(unmerged)} tokens are reached without merges")
    if sorted([*base.values(), *control.values()]) != list(range(len(base) + len(control))):
        raise TokenizerError(
            f"{directory / FILE_NAME}: its ids are not 0..{len(base) + len(control) - 1} without holes"
        )
    ranks = {data: token for data, token in base.items() if data not in unmerged}
    rules = Rules(
        _pattern(file["pre_tokenizer"], directory), nfc=_nfc(file["normalizer"], directory), unmerged=unmerged
    )
    return Tokenizer(directory, ranks, control, sha256, rules)


def _require(directory: Path, what: str, found: object, known: Iterable[object]) -> None:
    if found not in list(known):
        raise TokenizerError(f"{directory / FILE_NAME}: {what} that is not proven: {str(found)[:200]}")


def _plain_added(tokens: Sequence[_File], directory: Path) -> Iterator[_File]:
    """Yield added tokens, which must match their own text alone.

    `lstrip` and the like would eat what stands beside them.
    """
    for token in tokens:
        flags = [token[key] for key in ("lstrip", "rstrip", "single_word")]
        _require(directory, f"an added token {token['content']!r} with flags", flags, [[False, False, False]])
        yield token


def _byte_letters() -> dict[int, int]:
    """Return GPT-2's map from letters of a vocabulary to bytes.

    Printable bytes are themselves, the rest follow U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(0x100) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{0x100 + k: byte for k, byte in enumerate(hidden)}}


_LETTERS: Final = _byte_letters()


def _base_tokens(vocabulary: Mapping[str, int], control: frozenset[int]) -> dict[bytes, int]:
    """Return bytes to id of all tokens not added.

    ValueError at a letter that stands for no byte.
    """
    return {
        key.translate(_LETTERS).encode("latin-1"): token for key, token in vocabulary.items() if token not in control
    }


def _merged(merges: Sequence[str | Sequence[str]], vocabulary: Mapping[str, int], directory: Path) -> set[int]:
    """Return the tokens that merges make.

    Refused unless their ids ascend: only then is the order of merges that of ranks.
    """
    made = [vocabulary["".join(pair.split(" ") if isinstance(pair, str) else pair)] for pair in merges]
    if made != sorted(made):
        raise TokenizerError(f"{directory / FILE_NAME}: merges are not in the order of the ids that they make")
    return set(made)


def _pattern(pre: _File, directory: Path) -> str:
    if pre["type"] == "ByteLevel":
        _require(directory, "a ByteLevel", [pre["add_prefix_space"], pre["use_regex"]], [[False, True]])
        return _GPT_2
    *splits, last = pre["pretokenizers"]
    _require(directory, "a pre-tokenizer", [pre["type"], last["type"]], [["Sequence", "ByteLevel"]])
    _require(directory, "a ByteLevel", [last["add_prefix_space"], last["use_regex"]], [[False, False]])
    for split in splits:
        kind = [split["type"], split["behavior"], split["invert"]]
        _require(directory, "a pre-tokenizer", kind, [["Split", "Isolated", False]])
    stages = tuple(str(split["pattern"]["Regex"]) for split in splits)
    _require(directory, "a pattern", stages, PATTERNS)
    return PATTERNS[stages]


def _nfc(normalizer: _File | None, directory: Path) -> bool:
    known = [None, {"type": "NFC"}, {"type": "Sequence", "normalizers": []}]
    _require(directory, "a normaliser", normalizer, known)
    return normalizer == {"type": "NFC"}
