"""The tokenizer.json and chat template that every engine needs.

Guarantees: `tokenizer.json` is made from the written `tiktoken.model` by transformers' own converter and marks the
same control tokens special as Kimi does. Needs transformers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.convert_slow_tokenizer import TikTokenConverter

from harness.tiny_target.vocabulary import NAMED, NOT_SPECIAL
from pipeline.formats.tokenizer import KIMI_PATTERN

if TYPE_CHECKING:
    from pipeline.formats.tokenizer import Tokenizer

TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def write_tokenizer_json(tokenizer: Tokenizer) -> None:
    """Write `tokenizer.json` beside its vocabulary."""
    converter = TikTokenConverter(
        vocab_file=str(tokenizer.directory / "tiktoken.model"),
        pattern=KIMI_PATTERN,
        extra_special_tokens=list(tokenizer.control_names),
    )
    with uncached():
        made = json.loads(converter.converted().to_str())
    for token in made["added_tokens"]:
        token["special"] = is_special(int(token["id"]) - tokenizer.base_size)
    text = json.dumps(made, ensure_ascii=False, indent=1) + "\n"
    (tokenizer.directory / "tokenizer.json").write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def uncached() -> Iterator[None]:
    """Turn tiktoken's cache off.

    It keeps each vocabulary under its path's hash, and would convert the last run's file.
    """
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    try:
        yield
    finally:
        del os.environ["TIKTOKEN_CACHE_DIR"]
        if before is not None:
            os.environ["TIKTOKEN_CACHE_DIR"] = before


def is_special(place: int) -> bool:
    """Return whether skip_special_tokens drops a control token.

    Kimi's `place`-th: dropped where named, and neither tool nor think token.
    """
    return place in NAMED and place not in NOT_SPECIAL


def copy_template(directory: Path) -> None:
    """Write `chat_template.jinja` byte for byte."""
    shutil.copyfile(TEMPLATE, directory / TEMPLATE.name)
