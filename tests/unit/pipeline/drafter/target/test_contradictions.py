"""Configs that say one thing in two places, and not alike.

The expected readings are those of transformers 5: `rope_scaling` before `rope_parameters`, either before the top.
"""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from pipeline.drafter.target.contradictions import contradictions

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    "change, said",
    [
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
            "rope_theta is 10000.0 at the top and 500000.0 in rope_scaling",
        ),
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            "rope_theta is 10000.0 at the top and 500000.0 in rope_parameters",
        ),
        (
            {"rope_scaling": {"rope_theta": 1e4}, "rope_parameters": {"rope_theta": 1e6}},
            "rope_theta is 10000.0 in rope_scaling and 1000000.0 in rope_parameters",
        ),
        (
            {"rope_scaling": YARN, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
            "rope_type is 'yarn' in rope_scaling and 'default' in rope_parameters",
        ),
        (
            {"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 32.0}},
            "factor is 4.0 in rope_scaling and 32.0 in rope_parameters",
        ),
        (
            {"rope_scaling": {**YARN, "type": "linear"}},
            "rope_scaling has the type 'linear' and the rope_type 'yarn'",
        ),
        (
            {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}},
            "partial_rotary_factor is 0.5 at the top and 1.0 in rope_parameters",
        ),
        (
            {"original_max_position_embeddings": 64, "rope_scaling": YARN},
            "original_max_position_embeddings is 64 at the top and 32 in rope_scaling",
        ),
        (
            {
                "rope_theta": 7.0,
                "layer_types": ["full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
            },
            "rope_theta is 7.0 at the top and 1000000.0 for full_attention, 10000.0 for sliding_attention",
        ),
        *(
            (
                {name: top, "text_config": {**LLAMA, name: own}},
                f"{name} is {top!r} at the top and {own!r} in text_config",
            )
            for name, top, own in (
                ("hidden_size", 16, 32),
                ("vocab_size", 48, 56),
                ("num_hidden_layers", 8, 9),
                ("max_position_embeddings", 16, 128),
                ("tie_word_embeddings", True, False),
                ("rope_theta", 1e4, 5e5),
            )
        ),
        (
            {"text_config": {**LLAMA, "rope_theta": 1e4, "rope_scaling": {"rope_theta": 5e5}}},
            "rope_theta is 10000.0 at the top and 500000.0 in rope_scaling",
        ),
    ],
)
def test_what_stands_twice_and_not_alike_is_named(change: dict[str, Any], said: str) -> None:
    assert [said] == [*contradictions({**LLAMA, **change} if "text_config" not in change else change)]


@pytest.mark.parametrize(
    "document",
    [
        LLAMA,
        {**LLAMA, "rope_theta": 5e5, "rope_scaling": None, "rope_parameters": None},
        {**LLAMA, "rope_theta": 500_000, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {**LLAMA, "rope_theta": 1e4, "rope_scaling": {**YARN, "type": "yarn"}},
        {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
        {**LLAMA, "rope_theta": 1e6, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "linear": None}},
        {
            "model_type": "kimi_k25",
            "tie_word_embeddings": False,
            "text_config": {**LLAMA, "tie_word_embeddings": False},
        },
        {"model_type": "qwen3_5", "vision_config": {"hidden_size": 9}, "text_config": LLAMA},
    ],
)
def test_what_is_said_once_or_alike_is_no_contradiction(document: dict[str, Any]) -> None:
    assert [] == [*contradictions(document)]


def test_transformers_chooses_silently_where_we_refuse() -> None:
    """Why it is refused: the base at the top is what many writers mean, and transformers runs with the other."""
    told = {name: value for name, value in LLAMA.items() if name != "model_type"}
    scaled: dict[str, Any] = {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}

    assert 5e5 == AutoConfig.for_model("llama", **told, **scaled).rope_parameters["rope_theta"]
    assert 1 == len([*contradictions({**LLAMA, **scaled})])
