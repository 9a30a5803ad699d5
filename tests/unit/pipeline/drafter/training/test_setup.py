"""A training put together: vocabulary, settings, restored drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.fixtures.drafters import row, run_folder, small_llama
from harness.fixtures.trainings import ALONE, equal
from pipeline.drafter.rows import RowPolicy
from pipeline.drafter.training.checkpoints import CheckpointError, load, save
from pipeline.drafter.training.data import TrainingData, read_training_data
from pipeline.drafter.training.distributed import Sharing
from pipeline.drafter.training.recipe import Recipe
from pipeline.drafter.training.setup import Setup, drafter_of, sentences, set_up
from pipeline.records import Evidence

GIVEN = [row(f"r{n}", [5, 3], [7, 7, 40 + n % 3, 2], Evidence.ENGINE_IDS) for n in range(12)]
RECIPE = Recipe(ttt_length=2, tokens_a_batch=32, draft_vocabulary=5, epochs=1, held_out=0.3, learning_rate=0.01)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    folder = run_folder(tmp_path_factory.mktemp("rows") / "run", GIVEN, format="")
    return read_training_data(
        [folder], small_llama(tmp_path_factory.mktemp("small") / "target", bos_token_id=1, eos_token_id=2), RowPolicy()
    )


def begun(material: TrainingData, recipe: Recipe = RECIPE) -> Setup:
    return set_up(material, recipe, ALONE, Sharing.DDP)


def test_the_vocabulary_is_what_was_emitted_and_the_ends(material: TrainingData) -> None:
    """7 is in every row, 40 to 42 in a third each.

    2 is at every end; the llama's config ends on 2 and begins with 1.
    """
    setup = begun(material)

    assert 5 == len(setup.vocabulary.target_ids)
    assert {1, 2, 7} <= set(setup.vocabulary.target_ids.tolist())
    assert 0.75 < setup.vocabulary.coverage < 1
    assert setup.held_out_coverage is not None


def test_fresh_weights_follow_the_seed(material: TrainingData) -> None:
    found = [begun(material, replace(RECIPE, seed=seed)).training.drafter.state_dict() for seed in (1, 1, 2)]

    assert equal(found[0], found[1])
    assert not torch.equal(found[0]["fc.weight"], found[2]["fc.weight"])


def test_the_settings_name_what_decides_the_weights(material: TrainingData) -> None:
    settings = begun(material).settings

    assert (1, "online", [1, 3, 4]) == (settings["processes"], settings["states"], settings["layers"])
    assert material.facts.weights_sha256 == settings["target_weights_sha256"]
    assert material.document == settings["rows"]
    assert RECIPE.document().items() <= dict(settings).items()


def test_a_checkpoint_gives_back_its_drafter(material: TrainingData, tmp_path: Path) -> None:
    setup = begun(material)
    setup.training.take_step()

    drafter = drafter_of(load(save(tmp_path, setup.training.snapshot(setup.description))))

    assert setup.training.drafter.config == drafter.config
    assert equal(dict(setup.training.drafter.state_dict()), dict(drafter.state_dict()))


def test_a_checkpoint_without_a_drafter_is_refused(material: TrainingData) -> None:
    with pytest.raises(CheckpointError, match="after step 0 holds no drafter"):
        drafter_of(begun(material).training.snapshot({}))


def test_what_is_known_beforehand_is_said(material: TrainingData) -> None:
    setup = begun(material)
    lines = [*sentences(setup, material)]
    training, held_out = len(setup.split.training), len(setup.split.held_out)

    assert 12 == training + held_out
    assert f"{training} rows train, {held_out} validate; {setup.training.sampler.course.steps} steps in all" in lines
    assert lines[-1].startswith("draft vocabulary: 5 of 48 tokens, ")
