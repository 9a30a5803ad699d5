"""Sizes taken of a target, and the draft vocabulary: its tokens, and how it is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from pipeline.drafter.model.config import (
    DrafterConfig,
    DrafterConfigError,
    VocabularyError,
    choose_vocabulary,
    drafter_config,
)

pytestmark = pytest.mark.contract

SIZES = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def of_target(family: str, **changes: Any) -> DrafterConfig:  # noqa: ANN401 - JSON of a config
    config = AutoConfig.for_model(family, **SIZES | changes)
    return drafter_config(config, draft_vocab_size=20, layers=(1, 3, 4))


# Sizes of a target


@pytest.mark.parametrize(
    "family, change, base",
    [
        ("llama", {"rope_theta": 5e5}, 5e5),
        ("llama", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5),
        ("llama", {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 5e5),
        ("qwen3", {"rope_theta": 1_000_000}, 1e6),
        ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                             "sliding_attention": {"rope_type": "default", "rope_theta": 1e6}}}, 1e6),
    ],
)  # fmt: skip
def test_the_rotary_base_is_that_with_which_the_target_runs(family: str, change: dict[str, Any], base: float) -> None:
    assert base == of_target(family, **change).rope_theta


@pytest.mark.parametrize(
    "family, change, said",
    [
        (
            "gemma3_text",
            {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
            r"rope_theta is 10000\.0 for sliding_attention, 1000000\.0 for full_attention: a drafter has one layer",
        ),
        ("gpt2", {}, "the target's rope_theta is None for all layers: a drafter has one layer"),
        ("llama", {"num_attention_heads": 4, "num_key_value_heads": 3}, "num_attention_heads is 4 and .* 3: the one"),
    ],
)
def test_a_target_of_which_no_drafter_is_made_is_refused(family: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DrafterConfigError, match=said):
        of_target(family, **change)


@pytest.mark.parametrize("name", ["intermediate_size", "max_position_embeddings", "hidden_size", "vocab_size"])
def test_a_size_that_the_target_lacks_is_named(name: str) -> None:
    rotary = {"rope_parameters": {"rope_theta": 1e4}, **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))}
    config = SimpleNamespace(**SIZES | rotary | {name: None})

    with pytest.raises(DrafterConfigError, match=f"the target's {name} is None"):
        drafter_config(config, draft_vocab_size=20, layers=(1, 3, 4))


# The draft vocabulary


def test_the_most_frequent_tokens_are_in_as_offsets() -> None:
    found = choose_vocabulary(torch.tensor([5, 0, 7, 1, 9, 2]), 3)

    assert [0, 2, 4] == found.target_ids.tolist()
    assert [0, 1, 2] == found.d2t.tolist()
    assert [True, False, True, False, True, False] == found.t2d.tolist()
    assert found.coverage == pytest.approx(21 / 24)


def test_control_tokens_are_in_however_rare() -> None:
    assert [3, 4] == choose_vocabulary(torch.tensor([5, 0, 7, 0, 9, 2]), 2, always=[3]).target_ids.tolist()


def test_a_short_list_is_filled_with_the_lowest_unused_ids() -> None:
    assert [0, 1, 4] == choose_vocabulary(torch.tensor([0, 0, 0, 0, 9, 0]), 3).target_ids.tolist()


def test_a_whole_vocabulary_maps_each_token_to_itself() -> None:
    found = choose_vocabulary(torch.tensor([1, 2, 3]), 3)

    assert ([0, 0, 0], [True] * 3, 1.0) == (found.d2t.tolist(), found.t2d.tolist(), found.coverage)


@pytest.mark.parametrize("size, always", [(0, []), (4, []), (1, [0, 2]), (2, [3]), (2, [-1])])
def test_what_cannot_be_made_is_refused(size: int, always: list[int]) -> None:
    with pytest.raises(VocabularyError):
        choose_vocabulary(torch.tensor([1, 2, 3]), size, always)
