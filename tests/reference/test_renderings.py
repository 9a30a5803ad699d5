"""Prompts equal, id for id, to what Moonshot's own templates and tokenizer rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.formats.kimi.format import KimiFormat
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import KIMI_SHA256, Tokenizer, load_tokenizer
from pipeline.records import Prompt

pytestmark = pytest.mark.reference

FORMATS = {
    "k2.5": "kimi-k2.5",
    "k2.6-like(miles-fixed)": "kimi-k2.6",
    "k2-thinking(llamacpp)": "kimi-k2-thinking",
    "k2-july(llamacpp)": "kimi-k2",
}


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "kimi", expect_sha256=KIMI_SHA256)


@pytest.mark.parametrize("template", FORMATS)
def test_every_rendering_is_equal_id_for_id(template: str, tokenizer: Tokenizer, shared: Path) -> None:
    cases = json.loads((shared / "kimi" / "renderings.json").read_text(encoding="utf-8"))
    chosen = [case for case in cases if case["template"] == template]

    assert (32, 8) == (len(cases), len(chosen))
    assert {case["case"]: tuple(case["ids"]) for case in chosen} == {
        case["case"]: rendered(template, tokenizer, case) for case in chosen
    }


def rendered(template: str, tokenizer: Tokenizer, case: dict) -> tuple[int, ...]:  # type: ignore[type-arg]  # JSON
    """The switch `preserve_thinking` is a format name of its own; only K2.6's template reads it."""
    kwargs = case["kwargs"]
    preserve = "-preserve-thinking" if template.startswith("k2.6") and kwargs.get("preserve_thinking") else ""
    fmt = load_format(FORMATS[template] + preserve, tokenizer)
    assert isinstance(fmt, KimiFormat)
    prompt = Prompt(case["case"], tuple(case["messages"]), tuple(case["tools"] or ()), kwargs.get("thinking", True))
    return fmt.render(prompt, generation_prompt=kwargs["add_generation_prompt"])


def test_control_tokens_are_those_of_the_published_list(tokenizer: Tokenizer, shared: Path) -> None:
    published = json.loads((shared / "kimi" / "special_tokens.json").read_text(encoding="utf-8"))["tokens"]

    assert [token["content"] for token in published] == list(tokenizer.control_names)
    assert [token["id"] for token in published] == [tokenizer.id_of(name) for name in tokenizer.control_names]
