"""Which layers are read, and how served configs name them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from pipeline.drafter.target.layers import (
    AuxIdsError,
    LayerError,
    aux_layers,
    boundaries,
    layers_of,
    read_aux_ids,
    require_layers,
    written_aux_ids,
)
from pipeline.records import Json

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    "num_layers, expected",
    [(7, (1, 2, 3)), (8, (1, 3, 4)), (30, (1, 14, 26)), (32, (1, 15, 28)), (61, (1, 29, 57))],
)
def test_the_default_is_second_middle_and_fourth_last(num_layers: int, expected: tuple[int, ...]) -> None:
    assert expected == aux_layers(num_layers)


def test_boundaries_are_the_numbers_of_vllm_and_speculators() -> None:
    """[2, n // 2, n - 3] of a target of 30 layers."""
    assert (2, 15, 27) == boundaries(aux_layers(30))


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 5, 6])
def test_default_layers_that_collide_or_descend_are_refused(num_layers: int) -> None:
    with pytest.raises(LayerError, match=r"not three that ascend; that takes 7 layers"):
        aux_layers(num_layers)


def test_a_small_target_takes_layers_that_are_named() -> None:
    assert (0, 1, 3) == layers_of(4, [0, 1, 3])


def test_without_names_the_default_is_taken() -> None:
    assert (1, 3, 4) == layers_of(8)


@pytest.mark.parametrize("named", [(1, 1, 2), (2, 1, 3), (-1, 1, 2), (0, 1, 8)])
def test_layers_that_collide_descend_or_do_not_exist_are_refused(named: tuple[int, ...]) -> None:
    with pytest.raises(LayerError, match=r"do not ascend within 0\.\.7"):
        require_layers(named, 8)


@pytest.mark.parametrize("named", [(), (1, 2), (1, 2, 3, 4)])
def test_other_than_three_layers_are_refused(named: tuple[int, ...]) -> None:
    with pytest.raises(LayerError, match=f"{len(named)} layers were named"):
        require_layers(named, 8)


KEY = "eagle_aux_hidden_state_layer_ids"


def named(top: list[int] | None, nested: list[int] | None) -> dict[str, Json]:
    found: dict[str, Json] = {} if top is None else {KEY: [*top]}
    return found if nested is None else {**found, "eagle_config": {KEY: [*nested]}}


@pytest.mark.parametrize("layers", [7, 8, 30, 61])
def test_the_default_is_written_nowhere(layers: int) -> None:
    assert {} == written_aux_ids((1, layers // 2 - 1, layers - 4), layers, "llama")


def test_other_layers_are_in_both_keys_by_convention() -> None:
    """Layers that have run for vLLM, the layer whose output is meant for SGLang."""
    assert named([3, 11, 21], [2, 10, 20]) == written_aux_ids((2, 10, 20), 30, "llama")


@pytest.mark.parametrize("kind", ["deepseek_v3", "kimi_k2", "kimi_k25", "glm_moe_dsa"])
def test_in_some_families_sglang_counts_layers_that_have_run(kind: str) -> None:
    assert named([3, 11, 21], [3, 11, 21]) == written_aux_ids((2, 10, 20), 30, kind)


def test_ids_that_begin_with_one_are_outputs_to_every_engine() -> None:
    assert named([2, 11, 21], [1, 10, 20]) == written_aux_ids((1, 10, 20), 30, "deepseek_v3")


def test_a_first_layer_that_sglang_misreads_is_refused() -> None:
    with pytest.raises(AuxIdsError, match="layer 0 of a deepseek_v3 cannot be named to SGLang"):
        written_aux_ids((0, 10, 20), 30, "deepseek_v3")


def test_the_last_layer_that_sglang_withholds_is_refused() -> None:
    with pytest.raises(AuxIdsError, match="the output of layer 3, the target's last"):
        written_aux_ids((0, 1, 3), 4, "llama")


def test_the_default_is_written_where_sglangs_differs() -> None:
    assert named([2, 15, 27], [1, 14, 26]) == written_aux_ids((1, 14, 26), 30, "minimax_m3")


def test_under_seven_layers_there_is_no_default_to_leave_out() -> None:
    """With six: the default would be 1, 2, 2."""
    assert named([1, 2, 3], [0, 1, 2]) == written_aux_ids((0, 1, 2), 6, "llama")


@pytest.mark.parametrize(
    "config, kind, layers",
    [
        (named(None, None), "llama", (1, 14, 26)),
        (named([3, 11, 21], None), "llama", (2, 10, 20)),
        (named([3, 11, 21], [2, 10, 20]), "llama", (2, 10, 20)),
        (named([3, 11, 21], [3, 11, 21]), "kimi_k2", (2, 10, 20)),
        (named([2, 15, 27], [2, 15, 27]), "kimi_k2", (1, 14, 26)),
        (named([2, 15, 27], [1, 14, 26]), "kimi_k2", (1, 14, 26)),
    ],
)
def test_layers_are_read_as_they_are_written(config: Mapping[str, Json], kind: str, layers: tuple[int, ...]) -> None:
    assert layers == read_aux_ids(config, 30, kind)


@pytest.mark.parametrize(
    "config, said",
    [
        (named(None, [2, 10, 20]), "stands alone: SGLang reads outputs of layers in it"),
        (named([3, 11, 21], [3, 11, 21]), "name different states"),
        (named([3, 11, 21], [3, 10, 20]), "name different states"),
        ({KEY: "2,3,4"}, "three whole numbers belong there"),
        ({KEY: [2, True, 4]}, "three whole numbers belong there"),
    ],
)
def test_ids_that_can_be_read_in_two_ways_are_refused(config: Mapping[str, Json], said: str) -> None:
    with pytest.raises(AuxIdsError, match=re.escape(said)):
        read_aux_ids(config, 30, "llama")


@pytest.mark.parametrize("ids", [[2, 2, 3], [3, 2, 9], [1, 2, 31], [1, 2]])
def test_ids_that_are_not_three_layers_are_refused(ids: list[int]) -> None:
    with pytest.raises(LayerError):
        read_aux_ids(named(ids, None), 30, "llama")


def test_a_colliding_default_is_refused() -> None:
    with pytest.raises(LayerError):
        read_aux_ids({}, 4, "llama")
