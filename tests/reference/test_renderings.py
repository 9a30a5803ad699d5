"""Prompts equal, id for id, to what Moonshot's own template and tokenizer rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.formats.kimi import KimiFormat, load
from pipeline.records import Prompt
from pipeline.tokenizers import KIMI_SHA256, load_tokenizer

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def kimi(shared: Path) -> KimiFormat:
    return load("kimi-k2.5", load_tokenizer(shared / "kimi", expect_sha256=KIMI_SHA256))


def test_every_k25_rendering_is_equal_id_for_id(kimi: KimiFormat, shared: Path) -> None:
    cases = [
        case for case in json.loads((shared / "kimi" / "renderings.json").read_text()) if case["template"] == "k2.5"
    ]
    expected = {case["case"]: tuple(case["ids"]) for case in cases}
    actual = {case["case"]: rendered(kimi, case) for case in cases}

    assert 8 == len(cases)
    assert expected == actual


def rendered(kimi: KimiFormat, case: dict) -> tuple[int, ...]:  # type: ignore[type-arg]  # a JSON object
    kwargs = case["kwargs"]
    prompt = Prompt(case["case"], tuple(case["messages"]), tuple(case["tools"] or ()), kwargs.get("thinking", True))
    return kimi.render(prompt, generation_prompt=kwargs["add_generation_prompt"])


def test_control_tokens_are_those_of_the_published_list(kimi: KimiFormat, shared: Path) -> None:
    published = json.loads((shared / "kimi" / "special_tokens.json").read_text())["tokens"]

    assert [token["content"] for token in published] == list(kimi.tokenizer.control_names)
    assert [token["id"] for token in published] == [kimi.tokenizer.id_of(name) for name in kimi.tokenizer.control_names]
