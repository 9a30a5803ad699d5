"""Map a hosted model's slug to its format.

Guarantees: one table, matched against the whole slug without owner and variant. A model that is not in it has no
format, and is never read with another model's. Derived models (distillates, fine-tunes) are not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, cast

from pipeline.formats.format import Format, Opener
from pipeline.formats.registry import FORMATS, load_format
from pipeline.proof.fingerprint import RELEASES
from pipeline.records import JsonObject


class ThinkingMode(StrEnum):
    """When a model thinks.

    NEVER and ALWAYS hold whatever the request says; ON and OFF unless it says otherwise.
    """

    NEVER = "never"
    ALWAYS = "always"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Model:
    """A model's format, and when it thinks.

    `renders`: whether the format's prompt is this model's own. A model that always thinks is one whose prompt opens the
    thinking, even where other models of its format open it themselves (Qwen3-2507).
    """

    format: str
    thinks: ThinkingMode
    renders: bool = True

    def opener(self, fmt: Format, *, thinking: bool) -> Opener:
        """Return who opens the reasoning of its answers."""
        if self.thinks is ThinkingMode.NEVER:
            return Opener.NOBODY
        return Opener.PROMPT if self.thinks is ThinkingMode.ALWAYS else fmt.opener(thinking=thinking)


_SIZES = r"\d+(\.\d+)?b(-a\d+b)?"
_QUANTISED = r"(-(q\d\w*|fp8|bf16))?(\.gguf)?"

MODELS: Sequence[tuple[str, Model]] = (
    (r"kimi-k2(-instruct)?", Model("kimi-k2", ThinkingMode.NEVER)),
    (r"kimi-k2(-instruct)?-0?905", Model("kimi-k2-0905", ThinkingMode.NEVER)),
    (r"kimi-k2-thinking", Model("kimi-k2-thinking", ThinkingMode.ON)),
    (r"kimi-k2[.-]5", Model("kimi-k2.5", ThinkingMode.ON)),
    (r"kimi-k2[.-]6", Model("kimi-k2.6", ThinkingMode.ON)),
    ("tiny-kimi", Model("tiny-kimi", ThinkingMode.ON)),
    (r"qwen3-(235b-a22b|30b-a3b|4b)-thinking-2507", Model("qwen3", ThinkingMode.ALWAYS, renders=False)),
    (r"qwen3-next-80b-a3b-thinking", Model("qwen3", ThinkingMode.ALWAYS, renders=False)),
    (r"qwen3-(235b-a22b|30b-a3b|4b)-instruct-2507|qwen3-235b-a22b-(2507|07-25)", Model("qwen3", ThinkingMode.NEVER)),
    (r"qwen3-next-80b-a3b-instruct", Model("qwen3", ThinkingMode.NEVER)),
    (rf"qwen3-coder(-(flash|next|{_SIZES})(-instruct)?)?", Model("qwen3", ThinkingMode.NEVER, renders=False)),
    (rf"qwen3-{_SIZES}{_QUANTISED}", Model("qwen3", ThinkingMode.ON)),
    (rf"qwen3[.-]5-{_SIZES}{_QUANTISED}", Model("qwen3.5", ThinkingMode.ON)),
    (r"deepseek-r1", Model("deepseek-r1", ThinkingMode.ALWAYS)),
    (r"deepseek-r1-0528", Model("deepseek-r1", ThinkingMode.ALWAYS, renders=False)),
    (r"deepseek(-chat)?-v3\.1(-terminus)?", Model("deepseek-v3.1", ThinkingMode.OFF)),
    (r"deepseek-v3\.2-exp", Model("deepseek-v3.1", ThinkingMode.OFF, renders=False)),
    (r"deepseek-v3\.2", Model("deepseek-v3.2", ThinkingMode.OFF)),
    (r"glm-4\.5(-air)?", Model("glm-4.5", ThinkingMode.ON)),
    (r"glm-4\.6", Model("glm-4.6", ThinkingMode.ON)),
    (r"glm-4\.7", Model("glm-4.7", ThinkingMode.ON)),
    (r"glm-4\.7-flash", Model("glm-4.7-flash", ThinkingMode.ON)),
    (rf"glm-5(\.[12])?(-turbo)?{_QUANTISED}", Model("glm-5", ThinkingMode.ON)),
    (rf"gpt-oss[-:]{_SIZES}", Model("gpt-oss", ThinkingMode.ON, renders=False)),
)
"""Patterns of slugs, in lower case, without owner (`moonshotai/`), variant (`:free`, `:exacto`) and known date."""

_COMPILED = tuple((re.compile(pattern), model) for pattern, model in MODELS)


def model_of(slug: str) -> Model | None:
    """Return the table's entry for a slug, if any."""
    last = slug.lower().rsplit("/", 1)[-1]
    names = [RELEASES.get(name, name) for name in (last, last.rsplit(":", 1)[0])]
    return next((model for name in names for pattern, model in _COMPILED if pattern.fullmatch(name)), None)


def formats_on(given: Mapping[str, Format]) -> dict[str, Format]:
    """Return these formats and their siblings on the same vocabulary.

    A sibling has no chat template: the one beside the vocabulary is the named format's.
    """
    tokenizers = {fmt.tokenizer.sha256: fmt.tokenizer for fmt in given.values()}
    found: dict[str, Format] = {}
    for name, family in FORMATS.items():
        if name in given:
            found[name] = given[name]
        elif family.sha256 in tokenizers:
            fmt = load_format(name, tokenizers[family.sha256])
            has_template = getattr(fmt, "template", None) is not None
            found[name] = cast("Format", replace(cast("Any", fmt), template=None)) if has_template else fmt
    return found


@cache
def tokenizer_config(directory: Path) -> JsonObject:
    """Return the family's `tokenizer_config.json`; empty if unreadable."""
    try:
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
