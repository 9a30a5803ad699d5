"""Training data: folders of rows, or one store of states."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from harness.fixtures.drafters import row, run_folder, small_llama
from harness.fixtures.manifests import as_unsigned
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.row_folders import RowsError
from pipeline.drafter.rows import RowPolicy, read_rows
from pipeline.drafter.states.extract import ExtractionPlan, extract
from pipeline.drafter.states.manifest import StoreError, computed_with
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.drafter.training.data import (
    TrainingData,
    control_ids,
    frequencies,
    is_store,
    open_states,
    read_training_data,
)
from pipeline.formats.registry import TINY_SHA256
from pipeline.gate.gate import Kind
from pipeline.records import Evidence

pytestmark = pytest.mark.contract

CPU = torch.device("cpu")
GIVEN = [
    row("a", [5, 3], [1, 7, 40, 2]),
    row("b", [5, 4], [1, 7, 7, 2], Evidence.COUNTED),
    row("c", [5, 3, 9, 9, 9], [1, 40, 41, 2], Evidence.ENGINE_IDS),
]
EVERY = RowPolicy(min_evidence=Evidence.COUNTED)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target", bos_token_id=1, eos_token_id=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("rows") / "run", GIVEN)


@pytest.fixture(scope="module")
def store(target: Target, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("states") / "store"
    rows = read_rows([folder], EVERY)
    plan = ExtractionPlan(target.facts, target.layers, rows, "float32", computed_with(torch.float32, CPU))
    extract(plan, target, out, attestation="cd" * 32, progress=lambda _: None)
    return out


def material(
    path: Path, target: Target, policy: RowPolicy = EVERY, layers: tuple[int, ...] | None = None
) -> TrainingData:
    return read_training_data([path], target.facts.directory, policy, layers)


def test_a_store_is_told_from_rows_by_its_manifest(store: Path, folder: Path, tmp_path: Path) -> None:
    assert (True, False, False) == (is_store(store), is_store(folder), is_store(tmp_path))


def test_rows_and_their_store_give_the_same_states(target: Target, folder: Path, store: Path) -> None:
    online, offline = (open_states(material(path, target), CPU) for path in (folder, store))

    for one, other in zip(online.source.rows([0, 1, 2]), offline.source.rows([0, 1, 2]), strict=True):
        assert (one.id, one.ids.tolist(), one.mask.tolist()) == (other.id, other.ids.tolist(), other.mask.tolist())
        assert torch.equal(one.aux, other.aux)
        assert torch.equal(one.last, other.last)
    assert torch.equal(online.weights.embedding, offline.weights.embedding)
    assert torch.equal(online.weights.head, offline.weights.head)


def test_both_ask_the_gate_for_the_rows_vocabulary(target: Target, folder: Path, store: Path) -> None:
    for path in (folder, store):
        job = material(path, target).job
        assert (Kind.TRAIN, "tiny-kimi", "ab" * 32) == (job.kind, job.format, job.tokenizer_sha256)


@pytest.mark.parametrize(
    "policy, kept, left_out",
    [
        (EVERY, [0, 1, 2], {}),
        (RowPolicy(), [0, 2], {"weak_evidence": 1}),
        (RowPolicy(Evidence.ENGINE_IDS), [2], {"weak_evidence": 2}),
        (RowPolicy(Evidence.COUNTED, longest=6), [0, 1], {"too_long": 1}),
    ],
)
def test_a_store_is_held_to_the_policy_row_by_row(
    policy: RowPolicy, kept: list[int], left_out: dict[str, int], target: Target, store: Path
) -> None:
    found = material(store, target, policy)

    assert (kept, left_out) == (found.indices, found.left_out)


def test_the_risk_of_counted_rows_is_told_where_one_is_kept(target: Target, folder: Path, store: Path) -> None:
    for path in (folder, store):
        assert any(note.startswith("risk: 1 rows are of the grade counted") for note in material(path, target).notes)
        assert not any(note.startswith("risk: ") for note in material(path, target, RowPolicy()).notes)


def test_a_store_of_which_no_row_is_left_is_refused(target: Target, store: Path) -> None:
    with pytest.raises(RowsError, match=r"no row of .* is left to train on: 3 too_long"):
        material(store, target, RowPolicy(Evidence.COUNTED, longest=2))


def test_a_store_of_another_target_is_refused(store: Path, tmp_path: Path) -> None:
    other = small_llama(tmp_path / "wide", hidden_size=32)

    with pytest.raises(StoreError, match=r"holds states of a target whose hidden_size is 16, and that of .* is 32"):
        read_training_data([store], other, EVERY)


def test_a_store_has_its_own_layers(target: Target, store: Path) -> None:
    assert (1, 3, 4) == material(store, target, layers=(1, 3, 4)).layers
    with pytest.raises(RowsError, match=r"holds states of the layers 1,3,4: leave --layers out"):
        material(store, target, layers=(1, 3, 5))


def test_a_store_trains_by_itself(target: Target, store: Path, folder: Path) -> None:
    with pytest.raises(RowsError, match="one store of states trains by itself"):
        read_training_data([folder, store], target.facts.directory, EVERY)


def test_frequencies_are_of_emitted_tokens_alone(target: Target, folder: Path) -> None:
    """5 and 3 stand in prompts; 7 was emitted once in a and twice in b."""
    source = open_states(material(folder, target), CPU).source

    found = frequencies(source, [0, 1], 48)

    assert (8, 0, 0, 3, 1, 2) == (int(found.sum()), *(int(found[token]) for token in (5, 3, 7, 40, 2)))


def test_the_control_tokens_of_the_format_are_those_in_use(tmp_path: Path) -> None:
    """Kimi's layout keeps 256 ids behind its base tokens and names some; the tiny target ends on 770."""
    folder = run_folder(tmp_path / "run", [row("a", [768], [3, 770])], tokenizer_sha256=TINY_SHA256)

    found = control_ids(read_training_data([folder], WEIGHTS, EVERY))

    assert found == sorted(found)
    assert {770, 790, 791} <= set(found)  # the end token, <think> and </think>
    assert all(768 <= token < 1024 for token in found)
    assert len(found) < 30


def test_without_a_format_the_targets_special_tokens_are_kept(target: Target, tmp_path: Path) -> None:
    rows = [row("a", [5], [3, 2], Evidence.ENGINE_IDS)]
    folder = run_folder(tmp_path / "run", rows, format="", tokenizer_sha256="ab" * 32)
    found = material(folder, target)
    assert [1, 2] == control_ids(found)  # what a llama's config names where nothing else is said

    tokens = [{"id": 30, "content": "<|im_start|>", "special": True}, {"id": 31, "content": "soft", "special": False}]
    (target.facts.directory / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    try:
        assert [1, 2, 30] == control_ids(found)
    finally:
        (target.facts.directory / "tokenizer.json").unlink()


@pytest.mark.parametrize("kind", ["rows", "states"])
def test_what_nobody_signed_trains_only_where_asked(
    kind: str, folder: Path, store: Path, target: Target, tmp_path: Path
) -> None:
    path = as_unsigned(shutil.copytree({"rows": folder, "states": store}[kind], tmp_path / "it"))
    given = [path], target.facts.directory, EVERY

    with pytest.raises((RowsError, StoreError), match="--accept-unsigned takes it"):
        read_training_data(*given)
    assert read_training_data(*given, accept_unsigned=True).document["rows"]
