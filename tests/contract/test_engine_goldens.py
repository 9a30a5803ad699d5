"""The golden sets of the engines: today's prompts, the committed weights, and one answer from all of them."""

from __future__ import annotations

import pytest

from harness.engines.agreement import MOST, PROMPTS, asks
from harness.goldens.engine_sets import FOLDER, WEIGHTS, GoldenSet, Verdict, compare, prompts_sha256, read
from pipeline.base.files import weights_sha256
from pipeline.base.paths import ROOT
from pipeline.formats.registry import open_format
from pipeline.gate.engine_goldens import KNOWN, stale

pytestmark = pytest.mark.contract

COMMITTED = ("sglang-cpu", "transformers-cpu", "vllm-cpu")
NAMES = sorted(path.stem for path in FOLDER.iterdir())


def golden(name: str) -> GoldenSet:
    return read(FOLDER / f"{name}.jsonl")


def test_committed_sets_are_there_and_others_have_known_names() -> None:
    assert set(COMMITTED) <= set(NAMES) <= {*KNOWN}


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_of_the_version_that_is_pinned(name: str) -> None:
    assert "" == stale(ROOT, golden(name).key)


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_of_todays_prompts_and_weights(name: str) -> None:
    found = golden(name)

    assert prompts_sha256(asks(PROMPTS, MOST)) == found.prompts_sha256
    assert (weights_sha256(WEIGHTS), PROMPTS) == (found.key["weights_sha256"], len(found.answers))


@pytest.mark.parametrize("name", ["sglang-cpu", "vllm-cpu"])
def test_engines_say_what_transformers_says(name: str) -> None:
    """All 256 answers, greedy, are the same ids, though three programs computed them."""
    found = compare(golden("transformers-cpu"), golden(name))

    assert (Verdict.SAME, ()) == (found.verdict, found.differences)
    assert {"engine", "version"} <= set(found.moved)


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_whole_or_as_long_as_it_may_be(name: str) -> None:
    end = open_format("tiny-kimi").end_id

    assert all(each.finished == (each.ids[-1] == end) for each in golden(name).answers)
    assert all(each.finished or len(each.ids) == MOST for each in golden(name).answers)
