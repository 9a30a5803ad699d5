"""The drafter demo: its prompts, the commands of either target, and its verdict."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.measures.drafter import demo
from harness.measures.drafter.demo import (
    FAILED,
    Stage,
    main,
    smollm_stages,
    table,
    tiny_report,
    write_prompts,
    write_questions,
)
from harness.tiny_target.prompts import PROMPTS
from pipeline.base.prompts import read_prompts
from pipeline.cli.generate import add_parser
from pipeline.generation.breaker import Sign
from pipeline.records import Prompt


def smollm(out: Path) -> dict[str, list[str]]:
    """The commands of the demo on a set of 80 questions, by stage."""
    (out / "set.jsonl").write_text("".join(f'{{"turns": ["What is {n}?", "And why?"]}}\n' for n in range(80)))
    given = argparse.Namespace(model=Path("model"), out=out, questions=[out / "set.jsonl"], prompts=None)
    given.epochs, given.learning_rate, given.max_tokens, given.threads = 3, 1.5e-3, 96, 2
    return {stage.name: [*stage.command] for stage in smollm_stages(given)}


def prompts(path: Path) -> list[Prompt]:
    found = [*read_prompts(path)]
    assert all(isinstance(prompt, Prompt) for prompt in found)
    return [prompt for prompt in found if isinstance(prompt, Prompt)]


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


def test_rows_are_trained_on_and_held_out_prompts_evaluated(tmp_path: Path) -> None:
    stages, out = smollm(tmp_path), str(tmp_path)

    assert ["rows", "rows-sampled", "states", "train", "evaluate"] == [*stages]
    states = ["pipeline", "states", f"{out}/rows", f"{out}/rows-sampled", "--target", "model"]
    assert states == stages["states"][:6]
    assert ["pipeline", "train", f"{out}/states"] == stages["train"][:3]
    evaluate = ["pipeline", "evaluate", f"{out}/run/drafter", "--target", "model", "--prompts", f"{out}/held_out.jsonl"]
    assert evaluate == stages["evaluate"][:7]


@pytest.mark.parametrize("name, temperature", [("rows", 0.0), ("rows-sampled", 0.8)])
def test_smollms_rows_are_made_by_generate(name: str, temperature: float, tmp_path: Path) -> None:
    command = smollm(tmp_path)[name]
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    options = parser.parse_args(command[1:])

    assert ("pipeline", "generate", "local", "smollm2") == (*command[:2], options.route, options.format)
    assert (tmp_path / f"{name}.jsonl", tmp_path / name) == (options.prompts, options.out)
    assert [Sign.LENGTH_CUT, Sign.LOOP] == options.accept_trip
    assert (temperature, Path("model"), "model") == (options.temperature, options.weights, options.tokenizer)


def test_a_question_is_held_out_or_asked_and_later_turns_go(tmp_path: Path) -> None:
    smollm(tmp_path)
    held, asked, again = (prompts(tmp_path / f"{name}.jsonl") for name in ("held_out", "rows", "rows-sampled"))
    told = [[str(prompt.messages[0]["content"]) for prompt in each] for each in (held, asked, again)]

    assert {f"What is {n}?" for n in range(80)} == {*told[0], *told[1]}
    assert set() == {*told[0]} & {*told[1]}
    assert told[1] == told[2] == sorted(told[1], key=len)
    assert 0 < len(held) < 20
    assert {"set"} == {prompt.dataset for prompt in [*held, *asked]}


def test_a_question_asked_twice_is_on_one_side(tmp_path: Path) -> None:
    files = [tmp_path / name / "question.jsonl" for name in ("mt_bench", "gsm8k")]
    for file in files:
        file.parent.mkdir()
        file.write_text("".join(f'{{"question": "What is {n}?"}}\n' for n in range(40)))
    write_questions(tmp_path, files)
    held, asked = (prompts(tmp_path / f"{name}.jsonl") for name in ("held_out", "rows"))

    assert {"mt_bench", "gsm8k"} == {prompt.dataset for prompt in held}
    assert set() == {str(prompt.messages) for prompt in held} & {str(prompt.messages) for prompt in asked}


def test_rows_that_are_trained_on_together_differ_in_their_ids(tmp_path: Path) -> None:
    smollm(tmp_path)

    ids = [{prompt.id for prompt in prompts(tmp_path / f"{name}.jsonl")} for name in ("rows", "rows-sampled")]

    assert set() == ids[0] & ids[1]


def test_the_untrained_drafter_and_the_table_are_measured(tmp_path: Path) -> None:
    command = smollm(tmp_path)["evaluate"]

    assert ["--untrained", "0"] == command[command.index("--untrained") :][:2]
    assert ["--bigram", f"{tmp_path}/rows", f"{tmp_path}/rows-sampled"] == command[command.index("--bigram") :][:3]


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


def test_a_file_without_questions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(SystemExit):
        main(["--target", "smollm", "--out", str(tmp_path), "--model", "m", str(tmp_path / "set.jsonl")])

    assert "no file in it asks anything" in capsys.readouterr().err


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
