"""The lossless contract's measurement, on a small target. Needs torch."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from harness.fixtures.drafters import KnowingDrafting, drawn_drafter, small_llama
from harness.measures.drafter.lossless import tiny_questions, trials
from harness.tiny_target.provenance import WEIGHTS
from pipeline.base.prompts import RefusedLine, read_prompts
from pipeline.drafter.decoding.prompts import EvaluationPrompt
from pipeline.drafter.decoding.trees import parse_shape
from pipeline.drafter.decoding.verify import VerifyError
from pipeline.drafter.export.serving import export
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.formats.registry import open_format


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target"))


QUESTIONS = [EvaluationPrompt("a", (5, 3, 9), "s"), EvaluationPrompt("b", (8,), "s")]


def test_every_shape_is_drafted_by_everyone_and_nothing_differs(target: Target, tmp_path: Path) -> None:
    export(tmp_path / "trained", drawn_drafter(target, 48, seed=1), target.facts, dtype=torch.float32)
    shapes = [parse_shape(text) for text in ("chain:3", "tree:3,2")]

    found = trials(target, tmp_path / "trained", QUESTIONS, shapes, 12)

    expected = list(product("ab", ("chain:3", "tree:3,2"), ("drawn", "trained", "knowing")))
    assert expected == [(trial.prompt.id, trial.shape.name, trial.contender) for trial in found]
    assert {None} == {trial.difference for trial in found}


def test_who_knows_much_has_paths_of_every_length(target: Target) -> None:
    found = trials(target, None, QUESTIONS, [parse_shape("chain:3")], 40)

    knowing = [trial for trial in found if trial.contender == "knowing"]
    assert {0, 1, 2, 3} == {each.accepted for trial in knowing for each in trial.speculated.rounds}


def test_a_drafter_of_other_layers_is_refused(target: Target, tmp_path: Path) -> None:
    other = load_target(target.facts.directory, layers=(0, 2, 5))
    export(tmp_path / "other", drawn_drafter(other, 48), other.facts, dtype=torch.float32)

    with pytest.raises(VerifyError, match="reads layers"):
        trials(target, tmp_path / "other", QUESTIONS, [parse_shape("chain:3")], 12)


def test_the_tiny_targets_questions_are_none_of_the_shipped_ones() -> None:
    fmt = open_format("tiny-kimi")
    lines = read_prompts(WEIGHTS.parent / "prompts.jsonl")
    shipped = {fmt.render(line) for line in lines if not isinstance(line, RefusedLine)}

    found = tiny_questions(50)

    assert 50 == len({question.id for question in found})
    assert len(found) - sum(question.ids in shipped for question in found) > 40


def test_states_that_do_not_belong_to_the_tokens_are_found_out() -> None:
    with pytest.raises(ValueError, match="2 tokens came with the states of 1"):
        KnowingDrafting((1,), (2, 3), 48).follow((2, 3), torch.zeros(1, 4), 1)
