"""The tiny target's vocabulary: byte-level BPE under Kimi's pattern.

Guarantees: the same texts give the same ranks; every merge joins two earlier tokens, so tiktoken and a converted
`tokenizer.json` split alike. The 256 control tokens follow the base in Kimi's order, 23 of them named.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import regex

from pipeline.formats.tokenizer import CONTROL_TOKENS, KIMI_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pipeline.records import Json

BASE_SIZE = 768
"""Bytes and merges; with the control tokens 1,024 rows, a multiple of 64."""

NAMED: Mapping[int, str] = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
    6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>",
    19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 22: "<think>", 23: "</think>",
    254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
"""Kimi K2.5's named control tokens by their place after the base vocabulary."""

NOT_SPECIAL = frozenset((*range(11, 16), 22, 23))
"""`special: false` in Kimi's tokenizer_config.json: the tool tokens and the think pair survive skip_special_tokens."""

EXTRA_SPECIAL = frozenset(NAMED) - NOT_SPECIAL - {0, 1, 254, 255}
"""The special tokens that have no role of their own in a tokenizer_config.json."""

Pair: TypeAlias = tuple[bytes, bytes]
Words: TypeAlias = dict[tuple[bytes, ...], int]


def train_ranks(texts: Iterable[str], size: int = BASE_SIZE) -> dict[bytes, int]:
    """Return the ranks of `size` tokens.

    The 256 bytes, then the most frequent pair again and again (ties: the smaller pair). Raises ValueError when the
    texts run out of pairs before `size` is reached.
    """
    tokens = [bytes([value]) for value in range(256)]
    words = split_words(texts)
    while len(tokens) < size:
        pairs = count_pairs(words)
        if not pairs:
            raise ValueError(f"the texts hold only {len(tokens)} tokens, {size} are wanted")
        known = set(tokens)
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        words = merge(words, pair)
        if b"".join(pair) not in known:
            tokens.append(b"".join(pair))
    return {token: rank for rank, token in enumerate(tokens)}


def split_words(texts: Iterable[str]) -> Words:
    """Count each piece of Kimi's pattern.

    A piece is a tuple of its single bytes.
    """
    pattern = regex.compile(f"(?V1){KIMI_PATTERN}")
    counts = Counter(piece for text in texts for piece in pattern.findall(text))
    return {tuple(bytes([value]) for value in piece.encode()): count for piece, count in counts.items()}


def count_pairs(words: Words) -> Counter[Pair]:
    """Count how often two tokens stand side by side."""
    pairs: Counter[Pair] = Counter()
    for word, count in words.items():
        for pair in pairwise(word):
            pairs[pair] += count
    return pairs


def merge(words: Words, pair: Pair) -> Words:
    """Return the words with every such pair joined.

    From the left.
    """
    merged: Words = {}
    for word, count in words.items():
        joined = merge_word(word, pair)
        merged[joined] = merged.get(joined, 0) + count
    return merged


def merge_word(word: tuple[bytes, ...], pair: Pair) -> tuple[bytes, ...]:
    """Return one word with every such pair joined.

    From the left.
    """
    if pair[0] not in word:
        return word
    parts: list[bytes] = []
    index = 0
    while index < len(word):
        if word[index : index + 2] == pair:
            parts.append(b"".join(pair))
            index += 2
        else:
            parts.append(word[index])
            index += 1
    return tuple(parts)


def control_names(base: int) -> list[str]:
    """Return the 256 control tokens' names in id order."""
    return [NAMED.get(k, f"<|reserved_token_{base + k}|>") for k in range(CONTROL_TOKENS)]


def tokenizer_config(base: int) -> dict[str, Json]:
    """Return `tokenizer_config.json`.

    The named control tokens with Kimi's flags, and what AutoTokenizer asks for.
    """
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added: dict[str, Json] = {
        str(base + k): {"content": name, **flags, "special": k not in NOT_SPECIAL} for k, name in NAMED.items()
    }
    return {
        "added_tokens_decoder": added,
        "bos_token": NAMED[0],
        "eos_token": NAMED[1],
        "unk_token": NAMED[254],
        "pad_token": NAMED[255],
        "extra_special_tokens": [name for k, name in NAMED.items() if k in EXTRA_SPECIAL],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def write_vocabulary(ranks: Mapping[bytes, int], directory: Path) -> None:
    """Write `tiktoken.model` and `tokenizer_config.json`."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (directory / "tiktoken.model").write_text("".join(lines), encoding="ascii", newline="\n")
    config = json.dumps(tokenizer_config(len(ranks)), ensure_ascii=False, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(config, encoding="utf-8", newline="\n")
