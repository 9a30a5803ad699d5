"""Limits of a recipe; rates and places of steps."""

from __future__ import annotations

import json
import math

import pytest
import torch

from pipeline.drafter.model.loss import MaskMode
from pipeline.drafter.training.recipe import Course, Precision, Recipe, RecipeError, Schedule, course_of, schedule_of


def test_defaults_are_the_papers_but_for_supervised_rows() -> None:
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
def test_an_impossible_number_is_named_with_its_flag(name: str, value: object) -> None:
    with pytest.raises(RecipeError, match=rf"--{name.replace('_', '-')} .* is not "):
        Recipe(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


def test_an_infinite_clip_is_answered_with_a_finite_one() -> None:
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


def test_the_rate_rises_to_its_peak_and_falls_along_a_cosine() -> None:
    schedule = Schedule(peak=2.0, steps=10, warmup=2)

    assert [1.0, 2.0, 2.0] == [schedule.rate(step) for step in range(3)]
    assert pytest.approx(1.0) == schedule.rate(6)
    assert pytest.approx(2 * 0.038060233744356624) == schedule.rate(9)
    assert pytest.approx(0.0) == schedule.rate(10)


def test_without_a_warm_up_it_begins_at_its_peak() -> None:
    assert 3.0 == schedule_of(3.0, 100, 0.0).rate(0)


def test_the_warm_up_is_a_share_of_all_steps_and_one_at_least() -> None:
    assert [1, 2, 15, 3] == [
        schedule_of(1.0, steps, share).warmup for steps, share in ((10, 0.015), (101, 0.015), (1000, 0.015), (3, 0.99))
    ]


def test_a_run_of_one_step_takes_it_at_its_peak() -> None:
    assert 1.0 == schedule_of(1.0, 1, 0.015).rate(0)


def test_each_step_has_an_epoch_and_a_place_in_it() -> None:
    course = course_of(batches=[5, 4, 6], batches_a_step=2)

    assert ((3, 2, 3), 8) == (course.epochs, course.steps)
    assert [(0, 0), (0, 2), (1, 0), (1, 1), (2, 0), (2, 2)] == [course.place(step) for step in (0, 2, 3, 4, 5, 7)]


def test_steps_that_were_asked_for_end_it_before_its_epochs() -> None:
    course = Course((3, 3), most=4)

    assert (4, (1, 0)) == (course.steps, course.place(3))
    with pytest.raises(IndexError):
        course.place(4)
