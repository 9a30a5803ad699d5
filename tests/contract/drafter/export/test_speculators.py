"""Conversion to and from speculators' format, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.fixtures.drafters import drawn_drafter, small_llama
from pipeline.drafter.export.config import ServingConfigError
from pipeline.drafter.export.serving import ExportError, export
from pipeline.drafter.export.speculators import SpeculatorsFormatError, from_speculators, to_speculators
from pipeline.drafter.target.hidden_states import Target, load_target

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target"))


@pytest.fixture
def served(tmp_path: Path, target: Target) -> Path:
    export(tmp_path / "served", drawn_drafter(target, 20), target.facts)
    return tmp_path / "served"


@pytest.fixture
def theirs(tmp_path: Path, served: Path, target: Target) -> Path:
    out = tmp_path / "theirs"
    to_speculators(served, out, target.facts, target.embedding, verifier="some/target", draft_tokens=4)
    return out


def test_there_and_back_is_the_same_directory(tmp_path: Path, served: Path, theirs: Path, target: Target) -> None:
    from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)

    for name in ("config.json", "model.safetensors", "PROVENANCE.json"):
        assert (served / name).read_bytes() == (tmp_path / "back" / name).read_bytes()


def test_names_are_theirs_and_the_embedding_is_in(served: Path, theirs: Path, target: Target) -> None:
    ours, found = load_file(served / "model.safetensors"), load_file(theirs / "model.safetensors")

    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in ours.items()}
    assert {*renamed, "embed_tokens.weight"} == {*found}
    assert all(torch.equal(tensor, found[name]) for name, tensor in renamed.items())
    assert torch.equal(target.embedding.to(torch.bfloat16), found["embed_tokens.weight"])


def test_settings_are_where_they_are_looked_for(theirs: Path) -> None:
    document = json.loads((theirs / "config.json").read_bytes())

    assert "eagle3" == document["speculators_model_type"]
    assert [2, 4, 5] == document["eagle_aux_hidden_state_layer_ids"]
    assert 20 == document["draft_vocab_size"]
    assert [False] * 4 == [
        document[name] for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    ]
    assert {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    } == document["speculators_config"]
    assert ("llama", 48, 128) == tuple(
        document["transformer_layer_config"][name] for name in ("model_type", "vocab_size", "max_position_embeddings")
    )


@pytest.mark.parametrize(
    "change, said",
    [
        ({"norm_before_residual": True}, "norm_before_residual is on"),
        ({"norm_before_fc": True}, "norm_before_fc is on"),
        ({"fc_norm": True}, "fc_norm is on"),
        ({"norm_output": True}, "norm_output is on"),
        ({"norm_before_residual": None}, "norm_before_residual is absent, which vLLM takes for on"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash'"),
        ({"transformer_layer_config": {"model_type": "qwen3"}}, "its layer is of the family 'qwen3'"),
    ],
)
def test_what_is_not_plain_eagle_3_is_refused(
    tmp_path: Path, theirs: Path, target: Target, change: dict[str, Any], said: str
) -> None:
    document = json.loads((theirs / "config.json").read_bytes()) | change
    kept = {name: value for name, value in document.items() if value is not None or name not in change}
    (theirs / "config.json").write_text(json.dumps(kept), "utf-8")

    with pytest.raises(SpeculatorsFormatError, match=said):
        from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)


def test_more_layers_than_one_are_refused(tmp_path: Path, theirs: Path, target: Target) -> None:
    document = json.loads((theirs / "config.json").read_bytes())
    document["transformer_layer_config"]["num_hidden_layers"] = 2
    (theirs / "config.json").write_text(json.dumps(document), "utf-8")

    with pytest.raises(ServingConfigError, match="the drafter has 2 layers"):
        from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)


@pytest.mark.parametrize(
    "layer, said",
    [
        ({"max_position_embeddings": 16}, "the drafter's max_position_embeddings is 16 and the target's 128"),
        ({"max_position_embeddings": None}, "max_position_embeddings is None: a whole number from 1"),
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, r"rope_theta is 10000\.0, 500000\.0, 10000\.0"),
        ({"rope_theta": None, "rope_parameters": None}, "rope_theta is nothing: one finite number above 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 2 and num_key_value_heads 3"),
    ],
)
def test_a_layer_that_contradicts_itself_is_refused(
    tmp_path: Path, theirs: Path, target: Target, layer: dict[str, Any], said: str
) -> None:
    document = json.loads((theirs / "config.json").read_bytes())
    kept = document["transformer_layer_config"] | layer
    document["transformer_layer_config"] = {name: value for name, value in kept.items() if value is not None}
    (theirs / "config.json").write_text(json.dumps(document), "utf-8")

    with pytest.raises(ServingConfigError, match=said):
        from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"rope_theta": 5e5}, r"rope_theta is 500000\.0 at the top and 10000\.0 in its layer"),
        ({"max_position_embeddings": 16}, "max_position_embeddings is 16 at the top and 128 in its layer"),
        ({"vocab_size": 56}, "vocab_size is 56 at the top and 48 in its layer"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True at the top and False in its layer"),
    ],
)
def test_a_top_that_says_other_than_its_layer_is_refused(
    tmp_path: Path, theirs: Path, target: Target, change: dict[str, Any], said: str
) -> None:
    document = json.loads((theirs / "config.json").read_bytes()) | change
    (theirs / "config.json").write_text(json.dumps(document), "utf-8")

    with pytest.raises(SpeculatorsFormatError, match=said):
        from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)


def test_a_trained_embedding_is_refused(tmp_path: Path, theirs: Path, target: Target) -> None:
    tensors = load_file(theirs / "model.safetensors")
    save_file({**tensors, "embed_tokens.weight": tensors["embed_tokens.weight"] + 1}, theirs / "model.safetensors")

    with pytest.raises(SpeculatorsFormatError, match="its embedding is not the target's"):
        from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)


def test_verifier_weights_are_dropped_as_they_do_themselves(tmp_path: Path, theirs: Path, target: Target) -> None:
    tensors = load_file(theirs / "model.safetensors")
    save_file({**tensors, "verifier_norm.weight": torch.ones(16)}, theirs / "model.safetensors")

    from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)

    assert "verifier_norm.weight" not in load_file(tmp_path / "back" / "model.safetensors")


def test_a_drafter_of_another_target_is_refused(tmp_path: Path, served: Path) -> None:
    other = load_target(small_llama(tmp_path / "other", intermediate_size=32))

    with pytest.raises(ExportError, match="was trained on another target"):
        to_speculators(served, tmp_path / "out", other.facts, other.embedding, verifier="some/target", draft_tokens=4)


def test_a_trained_embedding_is_not_replaced(tmp_path: Path, served: Path, target: Target) -> None:
    tensors = load_file(served / "model.safetensors")
    own = {"embed_tokens.weight": torch.zeros(48, 16, dtype=torch.bfloat16)}
    save_file(tensors | own, served / "model.safetensors")

    with pytest.raises(SpeculatorsFormatError, match="its embedding is not the target's"):
        to_speculators(served, tmp_path / "out", target.facts, target.embedding, verifier="some/target", draft_tokens=4)


def test_a_layer_under_two_names_is_refused(tmp_path: Path, theirs: Path, target: Target) -> None:
    tensors = load_file(theirs / "model.safetensors")
    name = "layers.0.hidden_norm.weight"
    both = tensors | {name.replace("layers.0.", "midlayer."): tensors[name] + 1}
    save_file(both, theirs / "model.safetensors")

    with pytest.raises(SpeculatorsFormatError, match="holds tensors of its layer under two names"):
        from_speculators(theirs, tmp_path / "back", target.facts, target.embedding)
