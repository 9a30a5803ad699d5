"""What a training may be asked for."""

from __future__ import annotations

import math

import pytest

from pipeline.drafter.masks import MaskMode
from pipeline.drafter.recipe import Precision, Recipe, RecipeError


def test_the_defaults_are_those_of_the_paper_with_the_rows_that_serving_asks_for() -> None:
    recipe = Recipe()

    assert (7, 0.8, MaskMode.ALIGNED, 0.5) == (recipe.ttt_length, recipe.decay, recipe.mode, recipe.clip)
    assert ((0.9, 0.95), 0.0, Precision.FLOAT32) == (recipe.betas, recipe.weight_decay, recipe.precision)


@pytest.mark.parametrize(
    "name, value",
    [
        ("ttt_length", 0),
        ("ttt_length", 65),
        ("decay", 0.0),
        ("decay", 1.1),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("warmup", 1.0),
        ("clip", 0.0),
        ("weight_decay", -0.1),
        ("held_out", 1.0),
        ("betas", (0.9, 1.0)),
        ("steps", 0),
        ("tokens_a_batch", 0),
    ],
)
def test_a_number_that_no_training_can_have_is_named_with_its_flag(name: str, value: object) -> None:
    with pytest.raises(RecipeError, match=rf"--{name.replace('_', '-')} .* is not "):
        Recipe(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


def test_the_document_is_plain_json() -> None:
    document = Recipe(mode=MaskMode.SPECFORGE).document()

    assert ("specforge", [0.9, 0.95], "float32") == tuple(document[name] for name in ("mode", "betas", "precision"))
