"""Drawn conversations of other families, rendered here and by every other renderer that is at hand: equal, or listed.

Templates come with the vocabularies that `python -m harness vocabularies` unpacks, or lie beside a user's own;
`renderers`, and DeepSeek's encoder as SGLang and miles carry it, are oracles that are used where they are installed.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings

from harness.strategies.conversations import conversations
from pipeline.formats.registry import find_tokenizer, open_format
from pipeline.formats.tagged import TaggedFormat
from pipeline.records import Ids, Prompt, Reason, RefusedError

FAMILIES = (
    *("deepseek-r1", "deepseek-v3.1", "glm-4.5", "glm-4.6", "glm-4.7", "glm-4.7-flash", "glm-5", "qwen3", "qwen3.5"),
)
RENDERERS = {"glm-4.5": "glm45", "glm-4.6": "glm45", "glm-4.7": "glm5", "glm-4.7-flash": "glm5", "glm-5": "glm5"}
ENOUGH = 15
"""Prompts of a test that must be rendered and compared; the rest are of those that a family refuses."""


@cache
def family(name: str) -> TaggedFormat:
    """The family on its real vocabulary, or a skip that says how to get it."""
    if not os.environ.get("DRAFTER_GATE_TOKENIZERS") or (directory := find_tokenizer(name)) is None:
        pytest.skip(f"no {name} in $DRAFTER_GATE_TOKENIZERS; python -m harness vocabularies unpacks it")
    if not (directory / "tokenizer.json").is_file():
        pytest.skip(f"{directory} holds another family's vocabulary")
    fmt = open_format(name)
    assert isinstance(fmt, TaggedFormat)
    return fmt


def compared(
    fmt: TaggedFormat, theirs: Callable[[Prompt], Ids], listed: Callable[[Prompt], str] = lambda _: ""
) -> None:
    """Every drawn prompt that the family renders is equal to theirs, unless `listed` says why not."""
    seen: Counter[str] = Counter()

    @settings(max_examples=100)
    @given(conversations())
    def check(drawn: Prompt) -> None:
        prompt = sayable(fmt.name, drawn)
        try:
            ours = fmt.render(prompt)
        except RefusedError as error:
            if error.refusal.reason is Reason.PROMPT_MISMATCH:
                raise
            return
        if fmt.special_text(prompt) is None:
            assert (ours == theirs(prompt)) is not bool(listed(prompt)), fmt.tokenizer.decode_text(ours)
            seen[listed(prompt) or "equal"] += 1

    check()
    assert seen["equal"] >= ENOUGH


def sayable(name: str, prompt: Prompt) -> Prompt:
    """The prompt without tools where the family's template declares none; R1 always thinks."""
    if name not in ("deepseek-r1", "deepseek-v3.1"):
        return prompt
    return replace(prompt, tools=(), thinking=prompt.thinking or name == "deepseek-r1")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_equals_the_models_own_template(name: str) -> None:
    """A prompt is rendered as the models own template renders it."""
    fmt = family(name)
    if (template := fmt.template) is None:
        pytest.skip(f"no chat_template.jinja beside the vocabulary of {name}")

    def theirs(prompt: Prompt) -> Ids:
        asked, variables = fmt.dialect.template_inputs(prompt)
        return tuple(fmt.tokenizer.encode_prompt(template.text(asked, **variables)))

    compared(fmt, theirs)


@pytest.mark.parametrize("name", RENDERERS)
def test_a_prompt_equals_the_renderers_package(name: str) -> None:
    """A prompt is rendered as the package renderers renders it."""
    fmt = family(name)
    by_mode = {thinking: renderer(name, fmt, thinking=thinking) for thinking in (True, False)}

    def theirs(prompt: Prompt) -> Ids:
        messages = [dict(message) for message in fmt.dialect.template_inputs(prompt)[0].messages]
        tools = [dict(tool) for tool in prompt.tools] or None
        return tuple(by_mode[prompt.thinking].render_ids(messages, tools=tools, add_generation_prompt=True))

    compared(fmt, theirs, joined_calls if RENDERERS[name] == "glm45" else lambda _: "")


def joined_calls(prompt: Prompt) -> str:
    calls = [(str(message["content"]).strip(), message.get("tool_calls")) for message in prompt.messages]
    several = any(said and isinstance(asked, list) and len(asked) > 1 for said, asked in calls)
    return "renderers puts no line feed between the calls of an answer that has text too" if several else ""


def renderer(name: str, fmt: TaggedFormat, *, thinking: bool) -> Any:  # noqa: ANN401 — a class of a package without types
    transformers = pytest.importorskip("transformers")
    reason = "no renderers here. Run: pip install renderers==0.1.12 httpx"
    module = pytest.importorskip(f"renderers.{RENDERERS[name]}", reason=reason, exc_type=ImportError)
    kind = RENDERERS[name].upper()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(fmt.tokenizer.directory / "tokenizer.json"))
    return getattr(module, f"{kind}Renderer")(
        tokenizer, getattr(module, f"{kind}RendererConfig")(enable_thinking=thinking)
    )


def test_a_deepseek_v3_2_prompt_equals_its_own_encoder() -> None:
    """A prompt of deepseek v3 2 is what deepseeks own encoder makes of it."""
    fmt, encoder = family("deepseek-v3.2"), encoder_of_v32()

    def theirs(prompt: Prompt) -> Ids:
        messages = [dict(message) for message in prompt.messages]
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        if prompt.tools:
            messages[0]["tools"] = [dict(tool) for tool in prompt.tools]
        text = encoder.encode_messages(messages, thinking_mode="thinking" if prompt.thinking else "chat")
        return tuple(fmt.tokenizer.encode_prompt(text))

    compared(fmt, theirs)


def encoder_of_v32() -> ModuleType:
    """SGLang's copy, one file that needs nothing of the rest, or that of miles."""
    engine = importlib.util.find_spec("sglang")
    if engine is not None and engine.origin:
        path = Path(engine.origin).parent / "srt" / "entrypoints" / "openai" / "encoding_dsv32.py"
        spec = importlib.util.spec_from_file_location("encoding_dsv32", path)
        assert spec is not None
        assert spec.loader is not None
        copied = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copied)
        return copied
    name, where = "miles_tito_tokenizers.encoders.deepseek_v32", "pip install --no-deps miles-tito-tokenizers==0.1.1"
    module: ModuleType = pytest.importorskip(name, reason=f"neither SGLang nor miles is here. Run: {where}")
    return module
