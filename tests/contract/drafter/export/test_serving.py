"""A served directory: keys, shapes, settings, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.fixtures.drafters import drawn_drafter, small_llama
from harness.fixtures.small_drafters import CONFIG
from pipeline.drafter.export.config import ServingConfigError, layer_config
from pipeline.drafter.export.serving import ExportError, export, load_drafter, trained_on
from pipeline.drafter.export.weights import WeightsError
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.target.files import TargetFacts, target_facts
from pipeline.drafter.target.hidden_states import Target, load_target

pytestmark = pytest.mark.contract

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target", **TOKENS))


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    return drawn_drafter(target, 20)


@pytest.fixture
def served(tmp_path: Path, target: Target, drafter: Drafter) -> Path:
    export(tmp_path / "served", drafter, target.facts, dtype=torch.float32)
    return tmp_path / "served"


SHAPES = {
    "midlayer.self_attn.q_proj.weight": [16, 32],
    "midlayer.self_attn.k_proj.weight": [8, 32],
    "midlayer.self_attn.v_proj.weight": [8, 32],
    "midlayer.self_attn.o_proj.weight": [16, 16],
    "midlayer.mlp.gate_proj.weight": [24, 16],
    "midlayer.mlp.up_proj.weight": [24, 16],
    "midlayer.mlp.down_proj.weight": [16, 24],
    "midlayer.hidden_norm.weight": [16],
    "midlayer.input_layernorm.weight": [16],
    "midlayer.post_attention_layernorm.weight": [16],
    "fc.weight": [16, 48],
    "norm.weight": [16],
    "lm_head.weight": [20, 16],
    "d2t": [20],
    "t2d": [48],
}


def test_the_tensors_are_those_that_both_engines_place(served: Path) -> None:
    found = load_file(served / "model.safetensors")

    assert SHAPES == {name: list(tensor.shape) for name, tensor in found.items()}
    assert (torch.int64, torch.bool) == (found["d2t"].dtype, found["t2d"].dtype)


def test_offsets_give_the_targets_ids_as_engines_add_them(served: Path, drafter: Drafter) -> None:
    found = load_file(served / "model.safetensors")

    hot = found["d2t"] + torch.arange(20)

    assert drafter.t2d.nonzero()[:, 0].tolist() == hot.tolist()


def test_the_config_is_what_engines_read(served: Path) -> None:
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "vocab_size": 48,
        "draft_vocab_size": 20,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "torch_dtype": "float32",
        "dtype": "float32",
        "target_hidden_size": 16,
    }

    assert expected == json.loads((served / "config.json").read_bytes())


def test_another_rotary_base_is_said_in_each_place() -> None:
    found = layer_config(replace(CONFIG, rope_theta=500_000.0), "bfloat16")

    assert 500_000.0 == found["rope_theta"]
    assert {"rope_theta": 500_000.0, "rope_type": "default"} == found["rope_parameters"]


def test_a_whole_vocabulary_has_no_mapping(tmp_path: Path, target: Target) -> None:
    """Since vLLM keeps none then, and would not place one."""
    whole = drawn_drafter(target, 48)

    export(tmp_path / "whole", whole, target.facts, dtype=torch.float32)
    again = load_drafter(tmp_path / "whole", target.facts, target.embedding)

    found = load_file(tmp_path / "whole" / "model.safetensors")
    assert {"d2t", "t2d"}.isdisjoint(found)
    assert torch.arange(48).tolist() == again.to_target_ids(torch.arange(48)).tolist()


def test_weights_are_served_in_bfloat16_unless_asked_otherwise(
    tmp_path: Path, target: Target, drafter: Drafter
) -> None:
    export(tmp_path / "served", drafter, target.facts)

    found = load_file(tmp_path / "served" / "model.safetensors")

    floats = {str(tensor.dtype) for tensor in found.values()} - {"torch.int64", "torch.bool"}
    assert {"torch.bfloat16"} == floats
    assert "bfloat16" == json.loads((tmp_path / "served" / "config.json").read_bytes())["dtype"]


def test_what_is_read_back_is_the_drafter(served: Path, target: Target, drafter: Drafter) -> None:
    again = load_drafter(served, target.facts, target.embedding)

    assert drafter.config == again.config
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in drafter.state_dict().items())


def test_it_says_for_which_weights_it_was_trained(served: Path, target: Target) -> None:
    assert target.facts.weights_sha256 == trained_on(served)


def test_an_existing_directory_is_never_written_into(served: Path, target: Target, drafter: Drafter) -> None:
    with pytest.raises(ExportError, match=r"exists\. Give a new directory"):
        export(served, drafter, target.facts)


def test_numbers_that_are_not_finite_leave_nothing_behind(tmp_path: Path, target: Target) -> None:
    broken = drawn_drafter(target, 20)
    broken.fc.weight[0, 0] = torch.nan

    with pytest.raises(WeightsError, match=r"fc\.weight holds numbers that are not finite"):
        export(tmp_path / "broken", broken, target.facts)

    assert [] == list(tmp_path.iterdir())


def test_a_drafter_of_another_width_is_refused(tmp_path: Path, drafter: Drafter) -> None:
    other = target_facts(small_llama(tmp_path / "other", hidden_size=32, head_dim=16))

    with pytest.raises(ExportError, match="over 48 tokens of 16 numbers, the target over 48 of 32"):
        export(tmp_path / "served", drafter, other)


def test_a_drafter_of_another_target_is_not_read(tmp_path: Path, served: Path, target: Target) -> None:
    other = target_facts(small_llama(tmp_path / "other", vocab_size=56))

    with pytest.raises(ServingConfigError, match="vocab_size is 48 and the target's 56"):
        load_drafter(served, other, target.embedding)


def changed(tensors: dict[str, torch.Tensor], name: str, value: torch.Tensor | None) -> None:
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("d2t", None, "the tensor d2t is missing"),
        ("midlayer.hidden_norm.weight", None, "the tensor midlayer.hidden_norm.weight is missing"),
        ("input_norm.weight", torch.ones(48), "the tensor input_norm.weight is none that both engines place"),
        ("fc.weight", torch.ones(16, 16), r"fc.weight has the shape \[16, 16\], its config says \[16, 48\]"),
        ("norm.weight", torch.ones(16, dtype=torch.float16), "one floating type belongs there"),
        ("d2t", torch.zeros(20, dtype=torch.int32), "d2t and t2d are of torch.int32 and torch.bool"),
        ("d2t", -torch.arange(20), "does not name different tokens of the target in ascending order"),
        ("d2t", torch.full((20,), 40), "does not name different tokens of the target in ascending order"),
        ("d2t", torch.zeros(20, dtype=torch.int64), "d2t and t2d name different tokens"),
    ],
)
def test_tensors_that_engines_would_misread_are_refused(
    served: Path, target: Target, name: str, value: torch.Tensor | None, said: str
) -> None:
    tensors = load_file(served / "model.safetensors")
    changed(tensors, name, value)
    save_file(tensors, served / "model.safetensors")

    with pytest.raises(WeightsError, match=said):
        load_drafter(served, target.facts, target.embedding)


def test_an_embedding_other_than_the_targets_is_refused(served: Path, target: Target) -> None:
    tensors = load_file(served / "model.safetensors")
    save_file({**tensors, "embed_tokens.weight": target.embedding.clone()}, served / "model.safetensors")
    load_drafter(served, target.facts, target.embedding)

    save_file({**tensors, "embed_tokens.weight": target.embedding + 1}, served / "model.safetensors")
    with pytest.raises(ExportError, match="which SGLang ignores for the target's"):
        load_drafter(served, target.facts, target.embedding)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures is"),
        ({"norm_before_residual": True}, "norm_before_residual is on"),
        ({"norm_output": True, "fc_norm": True}, "fc_norm, norm_output is on"),
        ({"num_hidden_layers": 2}, "the drafter has 2 layers"),
        ({"hidden_act": "gelu"}, "with gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"the rotary embedding is scaled \(yarn\)"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"the rotary embedding is scaled \(\['yarn'\]\)"),
        ({"rope_scaling": {"rope_type": "default", "type": "yarn"}}, r"the rotary embedding is scaled \(yarn\)"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn': null or an object belongs there"),
        ({"rope_theta": 500000.0}, "rope_theta is 500000.0, 10000.0: one finite .* the same base in every place"),
        ({"rope_theta": None, "rope_parameters": None}, "rope_theta is nothing: one finite number above 0"),
        ({"rope_theta": 0, "rope_parameters": None}, "rope_theta is 0: one finite number above 0"),
        ({"rope_theta": -5.0, "rope_parameters": {"rope_theta": -5.0}}, "rope_theta is -5.0, -5.0: one finite number"),
        ({"rope_theta": 10**400, "rope_parameters": None}, f"rope_theta is 1{'0' * 39}…: one finite number"),
        ({"rope_theta": True, "rope_parameters": None}, "rope_theta is True: one finite number above 0"),
        ({"rope_theta": "10000"}, "rope_theta is '10000', 10000.0: one finite number above 0"),
        (
            {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
            "rope_theta is 10000.0, 500000.0, 10000.0: one finite .* the same base in every place",
        ),
        (
            {"rope_theta": None, "rope_parameters": None, "rope_scaling": {"rope_theta": "x"}},
            "rope_theta is nothing, 'x': one finite number above 0",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
            "rope_parameters has settings for full_attention, sliding_attention: a drafter has one layer",
        ),
        ({"max_position_embeddings": 16}, "the drafter's max_position_embeddings is 16 and the target's 128"),
        ({"max_position_embeddings": 4096}, "the drafter's max_position_embeddings is 4096 and the target's 128"),
        ({"max_position_embeddings": None}, "max_position_embeddings is None: a whole number from 1"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_attention_heads is 3 and num_key_value_heads 2"),
        ({"num_attention_heads": 3, "head_dim": None}, "hidden_size is 16 and num_attention_heads 3: without a head"),
        ({"head_dim": 7}, "head_dim is 7: a rotary embedding needs an even one"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5: here all of a head is rotated"),
        ({"partial_rotary_factor": "1"}, "partial_rotary_factor is 1: here all of a head is rotated"),
        (
            {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.25: here all of a head is rotated",
        ),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is on"),
        ({"sliding_window": 4096}, "sliding_window is 4096: here each token sees all before it, as null says"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*: a finite number above 0"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"head_dim": 0}, "head_dim is 0: a whole number from 1"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"target_hidden_size": 32}, "the drafter reads states of 32 numbers"),
    ],
)
def test_a_config_of_no_plain_drafter_is_refused(
    served: Path, target: Target, change: dict[str, Any], said: str
) -> None:
    document = json.loads((served / "config.json").read_bytes())
    (served / "config.json").write_text(json.dumps(document | change), "utf-8")

    with pytest.raises(ServingConfigError, match=said):
        load_drafter(served, target.facts, target.embedding)


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": None, "partial_rotary_factor": 1.0, "tie_word_embeddings": False},
        {"partial_rotary_factor": 1, "rope_parameters": None},
        {"rope_theta": 10_000, "rope_scaling": {"type": "default"}},
        {"rope_theta": None, "rope_parameters": None, "rope_scaling": {"rope_type": "default", "rope_theta": 1e4}},
    ],
)
def test_what_a_config_says_of_the_plain_architecture_is_read(
    served: Path, target: Target, change: dict[str, Any]
) -> None:
    document = json.loads((served / "config.json").read_bytes())
    (served / "config.json").write_text(json.dumps(document | change), "utf-8")

    assert 10_000.0 == load_drafter(served, target.facts, target.embedding).config.rope_theta


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{", "utf-8"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"),
    ],
    ids=["no config", "half a config", "no tensors"],
)
def test_a_directory_that_holds_no_drafter_is_refused(
    served: Path, target: Target, spoil: Callable[[Path], object]
) -> None:
    spoil(served)

    with pytest.raises(ExportError):
        load_drafter(served, target.facts, target.embedding)


def test_layers_may_be_named_over_the_configs(served: Path, target: Target) -> None:
    facts: TargetFacts = target.facts

    assert (0, 2, 5) == load_drafter(served, facts, target.embedding, layers=(0, 2, 5)).config.aux_layers
