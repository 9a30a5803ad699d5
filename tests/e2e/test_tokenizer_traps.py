"""What transformers makes of the real tokenizer files, against ours: where it is right, where it is known to be wrong.

Nothing in `pipeline/` asks transformers for a tokenizer. A release that changes what it builds fails here first: one
that goes wrong in a new place, and one that mends a known fault, whose line can then go.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.formats.tokenizer import Tokenizer, load_tokenizer
from pipeline.formats.tokenizer_json import load_tokenizer_json

TEXTS = (
    "He doesn't know, WE'LL see.",
    "नमस्ते दुनिया ไทยแลนด์ க்ஷ",
    "<think>\nx</think> y",
    "  x = {\n\t1: '…'}\r\n\n世界2026年",
)
RIGHT = ("deepseek-r1", "deepseek-v3.1", "deepseek-v3.2", "glm-4.5", "glm-5", "qwen3")


def place(folder: str, file: str) -> Path:
    for named in filter(None, os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep)):
        if (Path(named) / folder / file).is_file():
            return Path(named) / folder
    pytest.skip(f"no {folder or 'Kimi'} in $DRAFTER_GATE_TOKENIZERS")


def automatic(directory: Path) -> Any:  # noqa: ANN401 — a class of an untyped package
    """What a user gets who asks for the directory and nothing else; no code of the repository is trusted."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(directory))


def plain(directory: Path) -> Any:  # noqa: ANN401 — as above
    """The file alone, whatever class its config names."""
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))


def equal(theirs: Any, ours: Tokenizer) -> list[bool]:  # noqa: ANN401 — as above
    return [theirs(text)["input_ids"] == ours.encode_prompt(text) for text in TEXTS]


@pytest.mark.parametrize("folder", RIGHT)
def test_a_tokenizer_by_its_directory_splits_as_ours(folder: str) -> None:
    """4.57 put the token 0 before DeepSeek's text; 5.24 does not."""
    directory = place(folder, "tokenizer.json")

    assert [True] * len(TEXTS) == equal(automatic(directory), load_tokenizer_json(directory))


@pytest.mark.parametrize(
    "build, expected",
    [(automatic, [True, False, True, True]), (plain, [True] * len(TEXTS))],
    ids=["the class of its config", "the file alone"],
)
def test_qwens_class_replaces_the_pattern_of_a_later_file(build: Callable[[Path], Any], expected: list[bool]) -> None:
    directory = place("qwen3.5", "tokenizer.json")

    assert expected == equal(build(directory), load_tokenizer_json(directory))


def test_kimi_without_its_own_code_gets_another_pattern() -> None:
    """In silence."""
    directory = place("", "tiktoken.model")

    assert [False, False, True, True] == equal(automatic(directory), load_tokenizer(directory))


def test_the_pipeline_asks_transformers_for_no_tokenizer() -> None:
    """But where prompts of an evaluation are rendered for a target that no format knows, which makes no row."""
    sources = Path(__file__).parents[2].joinpath("pipeline").rglob("*.py")

    assert ["evaluation_prompts.py"] == [path.name for path in sources if "AutoTokenizer" in path.read_text("utf-8")]
