"""Which layers are read: the defaults of the public trainers, and what is refused."""

from __future__ import annotations

import pytest

from pipeline.drafter.target.layers import LayerError, aux_layers, boundaries, layers_of, require_layers


@pytest.mark.parametrize(
    "num_layers, expected",
    [(7, (1, 2, 3)), (8, (1, 3, 4)), (30, (1, 14, 26)), (32, (1, 15, 28)), (61, (1, 29, 57))],
)
def test_the_default_is_the_output_of_the_second_the_middle_and_the_fourth_last(
    num_layers: int, expected: tuple[int, ...]
) -> None:
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
