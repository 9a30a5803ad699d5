"""The verbs `prepare` and `datasets`: the table, the document, and plain errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.paths import ROOT
from pipeline.cli import prepare as preparing
from pipeline.cli.main import main
from pipeline.cli.prepare import document
from pipeline.datasets.fidelity.comparison import CHANGES, Change
from pipeline.datasets.fidelity.file import Checked, check_file
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.rows import MEANINGS, Reject

UNUSABLE, INTERRUPTED = 2, 130


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    texts = (
        "Sort it.",
        "sort it.",
        "",
        "Name three rivers that flow north through more than two countries of one continent.",
    )
    path.write_text(
        "".join(json.dumps({"id": str(n), "input": t}) + "\n" for n, t in enumerate(texts)), encoding="utf-8"
    )
    return path


@pytest.fixture
def evaluations(tmp_path: Path) -> Path:
    folder = tmp_path / "evaluations"
    folder.mkdir()
    text = "Name three rivers that flow north through more than two countries of one continent"
    (folder / "question.jsonl").write_text(json.dumps({"turns": [text]}), encoding="utf-8")
    (folder / "functions.json").write_text('{"name": "x"}', encoding="utf-8")
    return folder


def test_the_table_says_what_became_of_every_row(
    rows: Path, evaluations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "prompts.jsonl"
    status = main(["prepare", str(rows), "--dataset", "B2", "--out", str(out), "--decontaminate", str(evaluations)])
    lines = capsys.readouterr().out.splitlines()

    assert 0 == status
    assert [
        f"B2, OpenCodeInstruct: {rows}",
        "           4  rows read",
        f"           1  prompts, in {out}",
        f"           3  rejected, in {tmp_path / 'rejects.jsonl'}",
        f"           1  duplicate: {MEANINGS[Reject.DUPLICATE]}",
        f"           1  empty_prompt: {MEANINGS[Reject.EMPTY_PROMPT]}",
        f"           1  contaminated: {MEANINGS[Reject.CONTAMINATED]}",
        f"what prompts leave out of their rows, or decode, one line a prompt: {tmp_path / 'changes.jsonl'}",
        "one question a row was asked (--turns last); --turns all asks each, with the history before it",
        "compared with 1 evaluation texts: runs of 13 words, 8 in code",
        f"no evaluation prompt was found in 1 files: {evaluations / 'functions.json'}",
    ] == lines


def test_json_is_one_object_with_the_same_counts(
    rows: Path, evaluations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTER_GATE_EVALSETS", str(evaluations))
    status = main(["prepare", str(rows), "--dataset", "B2", "--out", str(tmp_path / "b2.jsonl"), "--json"])

    assert 0 == status
    assert {
        "dataset": "B2",
        "turns": "last",
        "rows": 4,
        "more_questions": 0,
        "prompts": 1,
        "rejected": {"duplicate": 1, "empty_prompt": 1, "contaminated": 1},
        "changed": {},
        "evaluation_texts": 1,
        "evaluation_files_without_prompts": [str(evaluations / "functions.json")],
        "out": str(tmp_path / "b2.jsonl"),
        "rejects": str(tmp_path / "b2.rejects.jsonl"),
        "changes": str(tmp_path / "b2.changes.jsonl"),
    } == json.loads(capsys.readouterr().out)


CHAT = [{"role": role, "content": f"{role} {n}"} for n in range(4) for role in ("user", "assistant")]


def test_every_question_is_asked_checked_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "prompts.jsonl"
    source.write_text(json.dumps({"messages": CHAT, "prompt_id": "p"}), encoding="utf-8")
    more = ["--no-decontaminate", "--turns", "all", "--check"]
    words = ("rows read", "more questions", "prompts, in", "checked")
    status = main(["prepare", str(source), "--dataset", "B6", "--out", str(out), *more])
    told = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_bytes().splitlines()]

    assert 0 == status
    assert [
        "           1  rows read",
        "           3  more questions of these rows (--turns all)",
        f"           4  prompts, in {out}",
        "checked against the source: 4 prompts, 16 turns, 126 characters; 0 differences",
    ] == [line for line in capsys.readouterr().out.splitlines() if any(word in line for word in words)]
    assert [
        {"id": name, "file": str(source), "line": 1, "changes": [{"change": "after_question", "what": f"{n} turns"}]}
        for name, n in (("B6-p#1", 7), ("B6-p#2", 5), ("B6-p#3", 3), ("B6-p", 1))
    ] == told


def test_a_difference_found_by_the_check_is_exit_1(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is another one when it is read again."""

    def changed(*given: Any) -> Checked:  # noqa: ANN401
        rows.write_text(rows.read_text(encoding="utf-8").replace("Sort it.", "Sort it"), encoding="utf-8")
        return check_file(*given)

    monkeypatch.setattr(preparing, "check_file", changed)
    arguments = ["--dataset", "B2", "--out", str(tmp_path / "out.jsonl"), "--no-decontaminate", "--check"]

    assert 1 == main(["prepare", str(rows), *arguments])
    assert "2 turns, 91 characters; 1 differences" in (said := capsys.readouterr().out)
    assert f"B2-0, {rows}:1: messages[0] is " in said


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "Name their folder with --decontaminate DIR or $DRAFTER_GATE_EVALSETS, or go without: --no-decontaminate"),
        (["--decontaminate", "nowhere"], "nowhere: there is no such folder"),
        (["--no-decontaminate", "--dataset", "B9"], "unknown dataset 'B9'; there are B1, "),
        (["--no-decontaminate", "--dataset", "B1"], "has the columns id, input; B1 wants chat, system."),
        (["--no-decontaminate", "--max-tokens-prompt", "9"], "name its format with --format F"),
        (["--no-decontaminate", "--format", "kimi-k9"], "unknown format 'kimi-k9'; there are "),
        (["--no-decontaminate", "--out", "{folder}"], "is a folder: give a file, such as "),
        (
            ["--no-decontaminate", "--out", "{folder}/none/x.jsonl"],
            "none is no folder. Make it, or give a file in another",
        ),
        (["--no-decontaminate", "--out", "{folder}/rows.jsonl"], "rows.jsonl is read as a part of "),
        (["--no-decontaminate", "--rejects", "{folder}/x.jsonl", "--out", "{folder}/x.jsonl"], "cannot hold both"),
        (["--no-decontaminate", "--rejects", "{folder}/out.changes.jsonl"], "cannot hold both"),
    ],
)
def test_arguments_that_cannot_be_used_are_said_in_one_sentence(
    arguments: list[str],
    said: str,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DRAFTER_GATE_EVALSETS", raising=False)
    given = [one.format(folder=tmp_path) for one in arguments]
    status = main(["prepare", str(rows), "--dataset", "B2", "--out", str(tmp_path / "out.jsonl"), *given])
    printed = capsys.readouterr()

    assert (UNUSABLE, "") == (status, printed.out)
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert 1 == printed.err.count("\n")
    assert ["rows.jsonl"] == [path.name for path in tmp_path.iterdir()]


def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    """A real process with workers, interrupted as a terminal does it."""
    line = json.dumps({"input": "Sort it. " * 40})
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": "{n}", {line[1:]}\n' for n in range(150_000)), encoding="utf-8")
    arguments = ["--dataset", "B2", "--out", str(tmp_path / "out.jsonl"), "--no-decontaminate", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "prepare", str(rows), *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not any(path.name.endswith(".tmp") for path in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)

    assert (INTERRUPTED, "interrupted\n") == (process.returncode, said)
    assert ["rows.jsonl"] == [path.name for path in tmp_path.iterdir()]


def test_the_committed_pages_are_the_generated_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Run `python -m pipeline datasets > docs/datasets.md` after a change of a page."""
    assert 0 == main(["datasets"])
    assert document() == (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8") == capsys.readouterr().out


def test_reasons_have_a_meaning_and_datasets_a_licence() -> None:
    assert list(Reject) == list(MEANINGS)
    assert list(Change) == list(CHANGES)
    assert [] == [meaning for meaning in MEANINGS.values() if not meaning or "\n" in meaning]
    assert [] == [name for name, one in DATASETS.items() if not one.licence or not one.page]
