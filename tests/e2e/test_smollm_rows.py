"""Rows of a model that has no format, by its own chat template: on the tiny target, which has both. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.measures.drafter import smollm_rows
from harness.measures.drafter.questions import Question
from harness.measures.drafter.smollm_rows import Model, make_rows, open_model
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.row_folders import job_of
from pipeline.drafter.rows import read_rows
from pipeline.drafter.target.files import target_facts
from pipeline.formats.registry import open_format
from pipeline.gate.gate import Job, Kind
from pipeline.records import Prompt, Sampling
from pipeline.shards.manifest import ManifestError, Session
from pipeline.shards.merge_inputs import read_inputs

TREE = {"pipeline/": "1"}
GREEDY = Sampling(0.0, 24, 0)
QUESTIONS = [
    Question("s-0", "s", ("What is 2 plus 2?", "And 3 plus 3?")),
    Question("s-1", "s", ("Who wrote this book?",)),
    Question("s-2", "s", ("Say hello.",), held_out=True),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model(WEIGHTS)


@pytest.fixture(autouse=True)
def attested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is what the session began on."""
    monkeypatch.setattr(smollm_rows, "tree_digests", lambda _: TREE)


def session() -> Session:
    return Session("then", "cd" * 32, TREE)


def made(model: Model, out: Path, questions: Sequence[Question] = QUESTIONS, sampling: Sampling = GREEDY) -> Path:
    make_rows(model, out, questions, sampling, session())
    return out


def raw(folder: Path) -> list[dict[str, object]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_rows_hold_the_templates_prompt_and_the_sampled_ids(model: Model, tmp_path: Path) -> None:
    """The format's own rendering is the oracle of the prompt, the engine's answer that of the output."""
    made(model, tmp_path / "rows")
    fmt = open_format("tiny-kimi")
    prompt = fmt.render(Prompt("q", ({"role": "user", "content": "Who wrote this book?"},)))
    answer = model.engine.generate([prompt], [GREEDY])[0].ids

    row = next(row for row in raw(tmp_path / "rows") if row["id"] == "s-1/0")

    assert ([*prompt], [*answer]) == (row["prompt_ids"], row["output_ids"])
    assert ("engine_ids", "s", "local") == (row["evidence"], row["dataset"], row["route"])


def test_a_second_turn_follows_the_models_own_first_answer(model: Model, tmp_path: Path) -> None:
    rows = {str(row["id"]): row for row in raw(made(model, tmp_path / "rows"))}
    text = model.template.decode(rows["s-0/0"]["output_ids"], skip_special_tokens=True)
    turns = [("user", "What is 2 plus 2?"), ("assistant", text), ("user", "And 3 plus 3?")]
    expected = model.prompt_ids([{"role": role, "content": content} for role, content in turns])

    assert [*expected] == rows["s-0/1"]["prompt_ids"]


def test_no_row_is_made_of_a_question_that_is_held_out(model: Model, tmp_path: Path) -> None:
    folder = made(model, tmp_path / "rows")

    held = [json.loads(line) for line in (folder / "held_out.jsonl").read_text().splitlines()]

    assert {"s-0/0", "s-0/1", "s-1/0"} == {row["id"] for row in raw(folder)}
    assert [("s-2/0", "s")] == [(line["id"], line["dataset"]) for line in held]
    assert [*model.prompt_ids([{"role": "user", "content": "Say hello."}])] == held[0]["prompt_ids"]


def test_training_takes_them_without_a_contract_of_a_vocabulary(model: Model, tmp_path: Path) -> None:
    rows = read_rows([made(model, tmp_path / "rows")])

    assert Job(Kind.TRAIN) == job_of(rows.folders)
    assert (3, {"engine_ids": 3}, {}) == (len(rows), dict(rows.evidence), rows.left_out)
    assert (target_facts(WEIGHTS).weights_sha256,) == rows.folders[0].weights()


def test_they_can_be_merged(model: Model, tmp_path: Path) -> None:
    assert 1 == len(read_inputs([made(model, tmp_path / "rows")]))


def test_sampled_answers_of_several_runs_make_one_set(model: Model, tmp_path: Path) -> None:
    folders = [made(model, tmp_path / str(seed), sampling=Sampling(1.0, 24, seed)) for seed in (1, 2)]

    assert (6, {}) == (len(read_rows(folders)), read_rows(folders).left_out)


def test_stopped_and_run_again_the_rows_are_the_same(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(model, tmp_path / "whole")
    monkeypatch.setattr(smollm_rows, "BATCH", 1)
    generate = type(model.engine).generate
    asked = 0

    def once(*given: object) -> object:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt
        return generate(*given)  # type: ignore[arg-type]  # whatever it was given

    with monkeypatch.context() as stopped:
        stopped.setattr(type(model.engine), "generate", once)
        with pytest.raises(KeyboardInterrupt):
            made(model, tmp_path / "stopped")
    assert 1 == len(raw(tmp_path / "stopped"))

    made(model, tmp_path / "stopped")

    def plain(folder: Path) -> list[tuple[str, object]]:
        return sorted((str(row["id"]), row["output_ids"]) for row in raw(folder))

    assert plain(whole) == plain(tmp_path / "stopped")
    assert 3 == len(read_rows([tmp_path / "stopped"]))


def test_a_prompt_without_room_ends_its_conversation(model: Model, tmp_path: Path) -> None:
    """It is in the quarantine."""
    long = Question("s-9", "s", ("word " * 3000, "And then?"))

    folder = made(model, tmp_path / "rows", [*QUESTIONS, long])

    refused = [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]
    assert [("s-9/0", "prompt_unsupported")] == [(line["id"], line["reason"]) for line in refused]
    assert not any(str(row["id"]).startswith("s-9") for row in raw(folder))


def test_a_folder_that_was_begun_with_other_questions_is_refused(model: Model, tmp_path: Path) -> None:
    made(model, tmp_path / "rows")

    with pytest.raises(ManifestError, match="was begun with prompts_sha256"):
        made(model, tmp_path / "rows", QUESTIONS[:2])


def test_without_an_attestation_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tmp_path / "state"))

    assert 3 == smollm_rows.main([str(WEIGHTS), str(tmp_path / "rows"), str(tmp_path / "no.jsonl")])

    assert "Run: nox -s contract" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()
