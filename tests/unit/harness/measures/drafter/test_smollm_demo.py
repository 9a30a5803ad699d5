"""The demo on SmolLM2: which commands it runs, and what it says of their result."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.measures.drafter.smollm_demo import commands, told

OPTIONS = argparse.Namespace(
    model=Path("model"),
    out=Path("out"),
    questions=[Path("a.jsonl"), Path("b.jsonl")],
    epochs=3,
    learning_rate=1.5e-3,
    prompts=None,
    max_tokens=96,
    threads=2,
)


def test_rows_are_trained_on_and_held_out_prompts_evaluated() -> None:
    stages = {name: (left, command) for name, left, command in commands(OPTIONS)}

    assert ["rows", "rows-sampled", "states", "train", "evaluate"] == [*stages]
    assert ["harness", "smollm-rows", "model", "out/rows", "a.jsonl", "b.jsonl"] == stages["rows"][1]
    assert ["pipeline", "states", "out/rows", "out/rows-sampled", "--target", "model"] == stages["states"][1][:6]
    assert ["pipeline", "train", "out/states"] == stages["train"][1][:3]
    expected = ["pipeline", "evaluate", "out/run/drafter", "--target", "model", "--prompts", "out/rows/held_out.jsonl"]
    assert expected == stages["evaluate"][1][:7]
    assert Path("out/run/drafter/config.json") == stages["train"][0]


def test_the_untrained_drafter_and_the_table_are_measured_beside_it() -> None:
    *_, (_, _, command) = commands(OPTIONS)

    assert ["--untrained", "0"] == command[command.index("--untrained") :][:2]
    assert ["--bigram", "out/rows", "out/rows-sampled"] == command[command.index("--bigram") :][:3]


def test_what_came_of_it_is_told_in_lines() -> None:
    cell = {"drafter": "drafter", "set": "gsm8k", "shape": "chain:4", "prompts": 20}
    numbers = {"acceptance_length": 1.5, "acceptance_length_without_loops": None, "speedup": 1.25}
    result = {"sets": [cell | numbers], "lossless": {"answers": 20, "ties": [], "failures": []}}

    lines = [*told(result, {"states": 60.0, "train": 1200.4})]

    assert ["drafter", "gsm8k", "chain:4", "20", "1.50", "-", "1.25"] == lines[1].split()
    assert ["lossless: 20 answers, 0 differ at a tie, 0 fail", "wall time: states 60 s, train 1,200 s"] == lines[2:]
