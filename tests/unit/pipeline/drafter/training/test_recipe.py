"""What a training may be asked for."""

from __future__ import annotations

import json
import math

import pytest
import torch

from pipeline.drafter.model.loss import MaskMode
from pipeline.drafter.training.recipe import Precision, Recipe, RecipeError


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
        ("clip", math.inf),
        ("clip", math.nan),
        ("weight_decay", -0.1),
        ("weight_decay", math.inf),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("held_out", 1.0),
        ("betas", (0.9, 1.0)),
        ("steps", 0),
        ("tokens_a_batch", 0),
    ],
)
def test_a_number_that_no_training_can_have_is_named_with_its_flag(name: str, value: object) -> None:
    with pytest.raises(RecipeError, match=rf"--{name.replace('_', '-')} .* is not "):
        Recipe(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


def test_what_is_said_of_an_infinite_clip_is_a_number_that_does_what_was_meant() -> None:
    with pytest.raises(RecipeError, match=r"--clip inf is not above 0 and finite \(1e9 clips nothing\)"):
        Recipe(clip=math.inf)
    assert 1e9 == json.loads(json.dumps(Recipe(clip=1e9).document(), allow_nan=False))["clip"]


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_every_seed_of_torch_is_one_of_a_recipe(seed: int) -> None:
    torch.manual_seed(seed)

    assert seed == Recipe(seed=seed).seed


def test_the_document_is_plain_json() -> None:
    document = Recipe(mode=MaskMode.SPECFORGE).document()

    assert ("specforge", [0.9, 0.95], "float32") == tuple(document[name] for name in ("mode", "betas", "precision"))
