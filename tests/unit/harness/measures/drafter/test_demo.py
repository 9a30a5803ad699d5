"""The drafter demo: its prompts, the commands of either target, and its verdict."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.measures.drafter import demo
from harness.measures.drafter.demo import FAILED, Stage, main, smollm_stages, table, tiny_report, write_prompts
from harness.tiny_target.prompts import PROMPTS

SMOLLM = argparse.Namespace(
    model=Path("model"),
    out=Path("out"),
    questions=[Path("a.jsonl"), Path("b.jsonl")],
    epochs=3,
    learning_rate=1.5e-3,
    prompts=None,
    max_tokens=96,
    threads=2,
)


def questions(path: Path) -> set[str]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {
        next(str(message["content"]) for message in reversed(line["messages"]) if message["role"] == "user")
        for line in lines
    }


def results(length: float, failures: int = 0) -> dict[str, Any]:
    cells = [{"drafter": "run", "acceptance_length": length}, {"drafter": "bigram", "acceptance_length": 1.5}]
    return {
        "generate": {"rows": {"accepted": 2000}},
        "train": {"steps": 9},
        "evaluate": {"sets": cells, "lossless": {"failures": [{}] * failures}},
    }


def test_no_question_is_both_trained_on_and_evaluated(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", 1500)
    trained = questions(tmp_path / "prompts.jsonl")

    assert 1500 == len((tmp_path / "prompts.jsonl").read_text("utf-8").splitlines())
    assert set() == trained & questions(PROMPTS)


@pytest.mark.parametrize("length, failures, status", [(2.5, 0, 0), (2.49, 0, FAILED), (3.0, 1, FAILED)])
def test_the_aim_and_the_lossless_contract_decide(length: float, failures: int, status: int, tmp_path: Path) -> None:
    assert status == tiny_report(tmp_path, results(length, failures), {"train": 1.0})
    assert {"run": length, "bigram": 1.5} == json.loads((tmp_path / "demo.json").read_bytes())["acceptance_length"]


def test_rows_are_trained_on_and_held_out_prompts_evaluated() -> None:
    stages = {stage.name: stage for stage in smollm_stages(SMOLLM)}

    assert ["rows", "rows-sampled", "states", "train", "evaluate"] == [*stages]
    assert ["harness", "smollm-rows", "model", "out/rows", "a.jsonl", "b.jsonl"] == stages["rows"].command
    assert ["pipeline", "states", "out/rows", "out/rows-sampled", "--target", "model"] == stages["states"].command[:6]
    assert ["pipeline", "train", "out/states"] == stages["train"].command[:3]
    expected = ["pipeline", "evaluate", "out/run/drafter", "--target", "model", "--prompts", "out/rows/held_out.jsonl"]
    assert expected == stages["evaluate"].command[:7]
    assert Path("out/run/drafter/config.json") == stages["train"].done


def test_the_untrained_drafter_and_the_table_are_measured() -> None:
    *_, evaluate = smollm_stages(SMOLLM)
    command = [*evaluate.command]

    assert ["--untrained", "0"] == command[command.index("--untrained") :][:2]
    assert ["--bigram", "out/rows", "out/rows-sampled"] == command[command.index("--bigram") :][:3]


def test_the_table_has_a_line_for_each_cell() -> None:
    cell = {"drafter": "drafter", "set": "gsm8k", "shape": "chain:4", "prompts": 20}
    numbers = {"acceptance_length": 1.5, "acceptance_length_without_loops": None, "speedup": 1.25}
    evaluated = {"sets": [cell | numbers], "lossless": {"answers": 20, "ties": [], "failures": []}}

    lines = [*table(evaluated, {"states": 60.0, "train": 1200.4})]

    assert ["drafter", "gsm8k", "chain:4", "20", "1.50", "-", "1.25"] == lines[1].split()
    assert ["lossless: 20 answers, 0 differ at a tie, 0 fail", "wall time: states 60 s, train 1,200 s"] == lines[2:]


def test_smollm_needs_a_model_and_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--target", "smollm", "--out", str(tmp_path), "--model", "m"])

    assert "--target smollm needs --model DIR and at least one FILE" in capsys.readouterr().err


def test_a_stage_that_is_done_is_skipped_and_a_failure_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m timeit -h` prints no JSON and exits 0; an unknown module exits 1."""
    stages = [
        Stage("first", ["timeit", "-h"], tmp_path / "first.done"),
        Stage("second", ["no_such_module"], tmp_path / "second.done"),
    ]
    monkeypatch.setitem(demo.TARGETS, "tiny", (lambda _: iter(stages), tiny_report))

    assert [1, 1] == [main(["--out", str(tmp_path)]) for _ in range(2)]

    assert (tmp_path / "first.done").exists()
    assert not (tmp_path / "second.done").exists()
    told = capsys.readouterr().err
    assert 1 == told.count("first: python -m timeit -h") == told.count("first: there already")
    assert 2 == told.count("second ended with 1")
    assert sys.executable not in told
