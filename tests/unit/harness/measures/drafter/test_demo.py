"""The demo's prompts are not those that it evaluates on, and its verdict is on the trained drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.measures.drafter.demo import FAILED, report, write_prompts
from harness.tiny_target.prompts import PROMPTS


def questions(path: Path) -> set[str]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {
        next(str(message["content"]) for message in reversed(line["messages"]) if message["role"] == "user")
        for line in lines
    }


def found(length: float, failures: int = 0) -> dict[str, Any]:
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
    assert status == report(tmp_path, found(length, failures), {"train": 1.0})
    assert {"run": length, "bigram": 1.5} == json.loads((tmp_path / "demo.json").read_bytes())["acceptance_length"]
