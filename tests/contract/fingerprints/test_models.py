"""The table of models: which format a slug answers in."""

from __future__ import annotations

import pytest

from harness.fixtures.exchanges import FORMAT
from pipeline.fingerprints.models import MODELS, ThinkingMode, formats_on, model_of
from pipeline.formats.format import Opener
from pipeline.formats.registry import FORMATS

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    "slug, name, thinks",
    [
        ("moonshotai/kimi-k2", "kimi-k2", ThinkingMode.NEVER),
        ("moonshotai/kimi-k2-0905:exacto", "kimi-k2-0905", ThinkingMode.NEVER),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2-0905", ThinkingMode.NEVER),
        ("moonshotai/kimi-k2-thinking", "kimi-k2-thinking", ThinkingMode.ON),
        ("moonshotai/kimi-k2.5-0127", "kimi-k2.5", ThinkingMode.ON),
        ("kimi-k2.6", "kimi-k2.6", ThinkingMode.ON),
        ("qwen/qwen3-32b", "qwen3", ThinkingMode.ON),
        ("/models/Qwen3-1.7B-Q4_K_M.gguf", "qwen3", ThinkingMode.ON),
        ("qwen/qwen3-235b-a22b-2507", "qwen3", ThinkingMode.NEVER),
        ("qwen/qwen3-30b-a3b-thinking-2507", "qwen3", ThinkingMode.ALWAYS),
        ("qwen/qwen3-coder:free", "qwen3", ThinkingMode.NEVER),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen3.5", ThinkingMode.ON),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1", ThinkingMode.ALWAYS),
        ("deepseek/deepseek-chat-v3.1:free", "deepseek-v3.1", ThinkingMode.OFF),
        ("deepseek/deepseek-v3.1-terminus:exacto", "deepseek-v3.1", ThinkingMode.OFF),
        ("deepseek/deepseek-v3.2-20251201", "deepseek-v3.2", ThinkingMode.OFF),
        ("z-ai/glm-4.5-air:free", "glm-4.5", ThinkingMode.ON),
        ("z-ai/glm-4.6:exacto", "glm-4.6", ThinkingMode.ON),
        ("glm-4.7-flash", "glm-4.7-flash", ThinkingMode.ON),
        ("zai-org/GLM-5.2-FP8", "glm-5", ThinkingMode.ON),
        ("openai/gpt-oss-120b:exacto", "gpt-oss", ThinkingMode.ON),
        ("gpt-oss:20b", "gpt-oss", ThinkingMode.ON),
    ],
)
def test_a_slug_names_its_format_whatever_owner_and_variant(slug: str, name: str, thinks: ThinkingMode) -> None:
    model = model_of(slug)

    assert model is not None
    assert (name, thinks) == (model.format, model.thinks)


@pytest.mark.parametrize(
    "slug",
    [
        *("", "moonshotai/kimi-k3", "qwen/qwen3-max", "qwen/qwen-2.5-coder-32b-instruct", "qwen3-embedding-0.6b"),
        *("moonshotai/kimi-k2.5-9999", "deepseek/deepseek-v3.2-20260101", "z-ai/glm-4.6-0101"),
        *("deepseek/deepseek-r1-distill-qwen-14b", "deepseek/deepseek-chat-v3-0324", "deepseek-v4-flash"),
        *("tngtech/deepseek-r1t2-chimera:free", "z-ai/glm-4.5v", "openai/gpt-4o", "nousresearch/hermes-4-70b"),
    ],
)
def test_a_model_that_is_not_in_the_table_has_no_format(slug: str) -> None:
    assert model_of(slug) is None


def test_a_vocabulary_serves_every_format_that_is_pinned_to_it() -> None:
    found = formats_on({"kimi-k2.5": FORMAT, "tiny-kimi": FORMAT})

    assert {"kimi-k2.5", "tiny-kimi"} == found.keys()
    assert FORMAT is found["tiny-kimi"]


def test_the_prompt_opens_thinking_where_a_model_always_thinks() -> None:
    model = model_of("qwen3-next-80b-a3b-thinking")

    assert model is not None
    assert Opener.PROMPT is model.opener(FORMAT, thinking=False)


def test_every_entry_names_a_format_that_there_is() -> None:
    assert {model.format for _, model in MODELS} <= FORMATS.keys()
    assert len(MODELS) == len({pattern for pattern, _ in MODELS})
