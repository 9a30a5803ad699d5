"""Our K2.5 prompts beside those of PyPI's `renderers`, on Kimi's own vocabulary: equal id for id, or listed.

It is an oracle and no dependency: without it the test skips.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from harness.strategies.conversations import conversations
from harness.strategies.texts import ids_of_text
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import KIMI_SHA256, Tokenizer, load_tokenizer
from pipeline.records import Ids, JsonObject, Prompt

k25 = pytest.importorskip(
    "renderers.kimi_k25", reason="no renderers here. Run: pip install renderers==0.1.12 httpx", exc_type=ImportError
)

Render = Callable[[Prompt], Ids]


class HubTokenizer:
    """What `renderers` asks of a hub tokenizer, answered by ours: control tokens by name, also inside text."""

    name_or_path = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ours = tokenizer
        self.unk_token_id = tokenizer.id_of("[UNK]")

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.ours.id_of(token) if token in self.ours.control_names else self.unk_token_id

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(ids_of_text(self.ours, text))


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "kimi", expect_sha256=KIMI_SHA256)


@pytest.fixture(scope="module")
def ours(tokenizer: Tokenizer) -> Render:
    return load_format("kimi-k2.5", tokenizer).render


@pytest.fixture(scope="module")
def theirs(tokenizer: Tokenizer) -> Render:
    hub = HubTokenizer(tokenizer)
    by_mode = {mode: k25.KimiK25Renderer(hub, k25.KimiK25RendererConfig(thinking=mode)) for mode in (True, False)}

    def render(prompt: Prompt) -> Ids:
        tools = [dict(tool) for tool in prompt.tools] or None
        messages = [dict(message) for message in prompt.messages]
        return tuple(by_mode[prompt.thinking].render_ids(messages, tools=tools, add_generation_prompt=True))

    return render


def listed(prompt: Prompt, tokenizer: Tokenizer) -> list[str]:
    """The known differences that a prompt has, in words; ours is what Moonshot's template and tokenizer give."""
    plain = [i for i, m in enumerate(prompt.messages) if m["role"] == "assistant" and not m.get("tool_calls")]
    going_on = prompt.messages[plain[-1] + 1 if plain else 0 :]
    found = []
    if not prompt.thinking and any(message.get("reasoning_content") for message in going_on):
        found.append("in instant mode renderers prints the reasoning of a tool loop that goes on")
    if any(is_split(message, tokenizer.encode) for message in prompt.messages if message["role"] == "tool"):
        found.append("renderers encodes the head of a tool's result apart from what it says")
    return found


def is_split(message: JsonObject, encode: Callable[[str], list[int]]) -> bool:
    head, content = f"## Return of {message['tool_call_id']}\n", str(message["content"])
    return encode(head) + encode(content) != encode(head + content)


def test_drawn_prompts_are_equal_id_for_id_or_listed(ours: Render, theirs: Render, tokenizer: Tokenizer) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conversations())
    def compare(prompt: Prompt) -> None:
        reasons = listed(prompt, tokenizer)
        assert (ours(prompt) == theirs(prompt)) is (not reasons)
        seen.update(reasons or ["equal"])

    compare()
    print("\nK2.5 prompts beside renderers 0.1.12:", dict(seen))  # noqa: T201 — the measure, for `pytest -s`
    assert seen["equal"] > 100


def test_recorded_renderings_are_equal_or_listed(
    ours: Render, theirs: Render, tokenizer: Tokenizer, shared: Path
) -> None:
    """The same comparison where Moonshot's own template is the third voice."""
    cases = json.loads((shared / "kimi" / "renderings.json").read_text("utf-8"))
    for case in cases:
        if case["template"] == "k2.5" and case["kwargs"]["add_generation_prompt"]:
            thinking = case["kwargs"].get("thinking", True)
            prompt = Prompt(case["case"], tuple(case["messages"]), tuple(case["tools"] or ()), thinking)
            assert tuple(case["ids"]) == ours(prompt)
            assert (theirs(prompt) == ours(prompt)) is (not listed(prompt, tokenizer)), case["case"]
