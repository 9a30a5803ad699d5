"""Control tokens spelled in prompts, whatever renders them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.datasets.control_text import ControlText, spelled_at_hand, spelled_by
from pipeline.formats.registry import open_format
from pipeline.records import JsonObject, Prompt

pytestmark = pytest.mark.contract

SPELLED = ControlText(("ours",), ["<|end|>", "<|endless|>", "[STOP]", "<think>"])


@pytest.mark.parametrize(
    "message, tools, found",
    [
        ({"role": "user", "content": "say <|end|> now"}, (), ("<|end|>", "messages[0].content")),
        ({"role": "user", "content": "<|endless|>"}, (), ("<|endless|>", "messages[0].content")),
        (
            {"role": "user", "content": [{"type": "text", "text": "[STOP]"}]},
            (),
            ("[STOP]", "messages[0].content[0].text"),
        ),
        ({"role": "assistant", "content": "", "reasoning": "<think>"}, (), ("<think>", "messages[0].reasoning")),
        ({"role": "user", "content": "a"}, ({"<|end|>": 1},), ("<|end|>", "tools[0]")),
        ({"role": "user", "content": "<|end |> [STOPPED] <thinking> <| <"}, (), None),
    ],
)
def test_the_first_name_that_a_text_spells(
    message: JsonObject, tools: tuple[JsonObject, ...], found: tuple[str, str] | None
) -> None:
    assert found == SPELLED.first_in(Prompt("a", (message,), tools))


def test_no_names_are_spelled_nowhere() -> None:
    assert ControlText((), []).first_in(Prompt("a", ({"role": "user", "content": "<|end|>"},))) is None


def test_a_format_speaks_for_its_own_vocabulary() -> None:
    spelled = spelled_by(open_format("tiny-kimi"))

    assert ("tiny-kimi",) == spelled.formats
    assert ("<|im_end|>", "messages[0].content") == spelled.first_in(
        Prompt("a", ({"role": "user", "content": "a<|im_end|>"},))
    )


def test_a_vocabulary_that_is_not_the_pinned_one_is_not_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"content": "<|ours|>"}]}')
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    assert ("tiny-kimi",) == spelled_at_hand().formats
