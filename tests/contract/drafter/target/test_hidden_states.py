"""Hidden states against transformers' own `output_hidden_states`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from harness.fixtures.drafters import small_llama, small_target
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.files import TargetError
from pipeline.drafter.target.hidden_states import OnlineStates, StatesError, StateSource, Target, groups, load_target
from pipeline.drafter.target.layers import LayerError
from pipeline.drafter.training.packing import RowStates
from pipeline.records import Evidence

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("small") / "target")


@pytest.fixture(scope="module", params=["small", "tiny"])
def directory(request: pytest.FixtureRequest, small: Path) -> Path:
    return {"small": small, "tiny": WEIGHTS}[request.param]


def row(name: str, ids: list[int], prompt: int) -> TrainingRow:
    mask = torch.arange(len(ids)) >= prompt
    return TrainingRow(name, torch.tensor(ids), mask, Evidence.ENGINE_IDS, "B1")


ROWS = [row("a", [5, 3, 9, 1, 7, 40, 2], 3), row("b", [8, 8, 2], 1), row("c", [11, 6, 30, 30, 4, 1, 0, 3, 2, 9], 8)]


def reference(directory: Path, ids: torch.Tensor) -> Any:  # noqa: ANN401 - transformers is untyped
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        return model(input_ids=ids[None], output_hidden_states=True)


def equal(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """To 1e-6 of the largest number."""
    assert expected.shape == actual.shape
    return float((expected - actual).abs().max()) < 1e-6 * float(expected.abs().max())


def test_states_are_transformers_own_layer_outputs(directory: Path) -> None:
    """`hidden_states[l + 1]` is the output of layer l, and of 8 layers EAGLE's are 1, 3 and 4."""
    expected = reference(directory, ROWS[0].ids).hidden_states

    states = load_target(directory).states(ROWS[:1])[0]

    low, mid, high = states.aux.chunk(3, dim=-1)
    assert (expected[2][0].tolist(), expected[4][0].tolist(), expected[5][0].tolist()) == (
        low.tolist(),
        mid.tolist(),
        high.tolist(),
    )


def test_the_last_state_is_normed_and_of_emitted_tokens_alone(directory: Path) -> None:
    """`hidden_states[-1]` is after the norm; what comes out of the last layer is not."""
    found = load_target(directory, layers=[1, 3, 7])
    expected = reference(directory, ROWS[0].ids).hidden_states[-1][0]

    states = found.states(ROWS[:1])[0]

    assert expected[3:].tolist() == states.last.tolist()
    before_the_norm = states.aux.chunk(3, dim=-1)[2][3:]
    assert not equal(before_the_norm, states.last)


def test_the_head_makes_the_models_logits_of_the_last_state(directory: Path) -> None:
    target = load_target(directory)
    expected = reference(directory, ROWS[2].ids).logits[0, 8:]

    last = target.states(ROWS[2:])[0].last

    assert equal(expected, last @ target.head.T)


def test_rows_together_have_the_states_that_each_has_alone(directory: Path) -> None:
    """In float64, where rounding hides no leak between rows."""
    target = load_target(directory, dtype=torch.float64)

    together = target.states(ROWS)
    alone = [target.states([row])[0] for row in ROWS]

    assert ["a", "b", "c"] == [states.id for states in together]
    for one, other in zip(alone, together, strict=True):
        assert equal(one.aux, other.aux)
        assert equal(one.last, other.last)


def test_ids_and_mask_come_as_they_lie_in_the_row(small: Path) -> None:
    states = load_target(small).states(ROWS)

    assert [row.ids.tolist() for row in ROWS] == [each.ids.tolist() for each in states]
    assert [row.mask.tolist() for row in ROWS] == [each.mask.tolist() for each in states]
    assert [4, 2, 2] == [each.last.shape[0] for each in states]


def test_a_token_that_comes_later_changes_no_state_before_it(small: Path) -> None:
    target = load_target(small)
    changed = row("a", [*ROWS[0].ids.tolist()[:-1], 33], 3)

    before, after = target.states(ROWS[:1])[0], target.states([changed])[0]

    assert before.aux[:-1].tolist() == after.aux[:-1].tolist()
    assert before.aux[-1].tolist() != after.aux[-1].tolist()


def test_states_come_in_the_dtype_that_is_asked_for(small: Path) -> None:
    target = load_target(small)
    exact = target.states(ROWS[:1])[0]

    rounded = target.states(ROWS[:1], torch.bfloat16)[0]

    assert (exact.aux.bfloat16().tolist(), exact.last.bfloat16().tolist()) == (
        rounded.aux.tolist(),
        rounded.last.tolist(),
    )


def test_a_drafter_can_learn_from_the_states(small: Path) -> None:
    """Inference tensors could not be kept for the backward pass."""
    states = load_target(small).states(ROWS[:1])[0]
    weight = torch.zeros(48, 3, requires_grad=True)

    (states.aux @ weight).sum().backward()

    assert weight.grad is not None
    assert not states.aux.requires_grad


def test_layers_of_a_target_under_seven_are_named_or_refused(tmp_path: Path) -> None:
    small = small_llama(tmp_path / "target", num_hidden_layers=4)
    expected = reference(small, ROWS[0].ids).hidden_states

    with pytest.raises(LayerError, match="a target of 4 layers has the default layers 1, 1, 0"):
        load_target(small)
    states = load_target(small, layers=[0, 1, 2]).states(ROWS[:1])[0]

    assert torch.cat([expected[index][0] for index in (1, 2, 3)], dim=-1).tolist() == states.aux.tolist()


def test_the_embedding_and_the_head_are_the_models(small: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32, local_files_only=True)
    target = load_target(small)

    assert torch.equal(model.model.embed_tokens.weight, target.embedding)
    assert torch.equal(model.lm_head.weight, target.head)
    assert not target.head.requires_grad


MOE: dict[str, object] = {"num_experts_per_tok": 2, "moe_intermediate_size": 8}
ROUTED: dict[str, object] = {**MOE, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
MLA: dict[str, object] = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {},
    "qwen3_moe": {**MOE, "num_experts": 4},
    "glm4_moe": ROUTED,
    "deepseek_v3": {**ROUTED, **MLA, "head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 2},
    "gemma3_text": {"tie_word_embeddings": True, "query_pre_attn_scalar": 8},
    "gpt2": {"n_embd": 16, "n_layer": 8, "n_head": 2, "n_positions": 128, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_states_are_those_of_transformers_too(tmp_path: Path, family: str) -> None:
    folder = small_target(tmp_path / "target", family, **FAMILIES[family])
    expected = reference(folder, ROWS[0].ids)

    states = load_target(folder).states(ROWS)[0]

    assert near(torch.cat([expected.hidden_states[index][0] for index in (2, 4, 5)], dim=-1), states.aux)
    assert near(expected.hidden_states[-1][0, 3:], states.last)


def near(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """Compare with tolerance: experts add up in another order."""
    return expected.shape == actual.shape and float((expected - actual).abs().max()) < 2e-5


@pytest.mark.parametrize("family, scale", [("gemma2", {"final_logit_softcapping": 2.0}), ("cohere", {})])
def test_a_family_that_caps_or_scales_its_logits_is_refused(
    tmp_path: Path, family: str, scale: dict[str, object]
) -> None:
    """The loss would teach another distribution than is served."""
    folder = small_target(tmp_path / "target", family, tie_word_embeddings=True, **scale)

    with pytest.raises(TargetError, match="are not its head's weight times its last state"):
        load_target(folder)


def test_ends_that_are_not_as_the_config_says_are_refused(small: Path) -> None:
    target = load_target(small)
    target.model.resize_token_embeddings(50)

    with pytest.raises(TargetError, match=r"its embedding has the shape \[50, 16\], and its config says vocab_size 48"):
        Target(target.facts, target.model, target.layers)


def test_layers_other_than_transformers_states_are_refused(small: Path) -> None:
    target = load_target(small)
    target.model.model.layers[3].register_forward_hook(lambda _block, _given, output: output + 1)

    with pytest.raises(TargetError, match="is not what transformers calls its hidden states"):
        Target(target.facts, target.model, target.layers)


def test_a_head_with_more_than_a_weight_is_refused(small: Path) -> None:
    target = load_target(small)
    target.model.lm_head = torch.nn.Linear(16, 48)
    target.model.lm_head.weight = torch.nn.Parameter(target.embedding.clone())

    with pytest.raises(TargetError, match="are not its head's weight times its last state"):
        Target(target.facts, target.model, target.layers)


def test_states_that_are_not_finite_name_their_row(small: Path) -> None:
    target = load_target(small)
    with torch.no_grad():
        target.embedding[40] = torch.nan  # in row a alone

    assert ["b"] == [states.id for states in target.states(ROWS[1:2])]
    with pytest.raises(StatesError, match="row 'a': the target's states are not finite"):
        target.states(ROWS)


def test_states_that_the_stored_dtype_cannot_hold_name_their_row(small: Path) -> None:
    target = load_target(small)
    with torch.no_grad():
        target.embedding[11] *= 1e6  # in row c alone, and above float16's 65,504

    with pytest.raises(StatesError, match="row 'c': the target's states are not finite as float16"):
        target.states(ROWS, torch.float16)
    assert 3 == len(target.states(ROWS, torch.bfloat16))


def test_a_directory_that_lacks_weights_is_refused(small: Path, tmp_path: Path) -> None:
    """Transformers would draw them anew and only log it."""
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "target"
    broken.mkdir()
    (broken / "config.json").write_bytes((small / "config.json").read_bytes())
    weights = load_file(small / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(TargetError, match=r"lacks weights that its config names: model\.layers\.3\.mlp\.up_proj"):
        load_target(broken)


def test_online_states_are_the_targets_in_the_order_given(small: Path) -> None:
    target = load_target(small)
    source: StateSource = OnlineStates(target, ROWS)

    found = source.rows([2, 0])

    assert ([7, 3, 10], (1, 3, 4), 16, 48) == (source.lengths, source.layers, source.hidden_size, source.vocab_size)
    assert ["c", "a"] == [states.id for states in found]
    assert_same(target.states([ROWS[2], ROWS[0]]), found)


def assert_same(expected: list[RowStates], actual: list[RowStates]) -> None:
    for one, other in zip(expected, actual, strict=True):
        assert (one.aux.tolist(), one.last.tolist()) == (other.aux.tolist(), other.last.tolist())


def test_rows_of_like_length_run_together_within_the_limit() -> None:
    assert [[1, 3], [0], [2]] == groups([5, 2, 9, 3], 6)
    assert [[0, 1, 2]] == groups([1, 2, 3], 9)
    assert [] == groups([], 6)
