"""The audit of a source, and its verb."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pipeline.base.json_lines import canonical
from pipeline.base.paths import ROOT
from pipeline.cli.main import main
from pipeline.datasets.audit import Audit, Auditor, audited_rows, defaults_of
from pipeline.datasets.control_text import ControlText
from pipeline.datasets.features import Feature
from pipeline.datasets.registry import DATASETS
from pipeline.records import ToolMode

pytestmark = pytest.mark.contract

GLAIVE = (
    "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    '{"name": "bake", "description": "Bakes.", "parameters": {"type": "object", "properties": {}}}\n'
)
B1 = [
    {"system": GLAIVE, "chat": "USER: One loaf.\n\n\nASSISTANT: I cannot bake today. <|endoftext|>\n\n\n"},
    {
        "system": "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n",
        "chat": "USER: What is rye?\n\n\nASSISTANT: A grain. <|endoftext|>\n\n\n",
    },
]
MESSAGES: list[dict[str, object]] = [
    {"id": "a", "messages": [{"role": "user", "content": "Bread?"}]},
    {"id": "b", "messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "<|end|>?"}]},
    {"id": "a", "messages": [{"role": "user", "content": "Bread again?"}]},
    {"id": "d", "messages": "none"},
]
LOST: dict[str, object] = {"id": "e", "messages": [{"role": "tool", "content": 3}]}


@pytest.fixture(autouse=True)
def no_vocabularies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTER_GATE_TOKENIZERS", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def written(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def audit(path: Path, dataset: str = "messages", workers: int = 1) -> Audit:
    auditor = Auditor(dataset, ToolMode.RAW, ControlText(("ours",), ["<|end|>"]))
    found = Audit(auditor)
    for row in audited_rows(auditor, DATASETS[dataset], path, workers):
        found.take(row)
    return found


def test_rows_are_prompts_and_rejected_rows_each_counted_once(tmp_path: Path) -> None:
    found = audit(written(tmp_path / "m.jsonl", MESSAGES)).document()

    share = {"rows": 1, "share": 0.5}
    assert (4, 2, {"repeated": 1, "wrong_shape": 1}) == (found["rows"], found["prompts"], found["rejected"])
    assert {
        "special_text": share
        | {"first": [{"row": 2, "id": "b", "what": "it spells <|end|>", "where": "messages[1].content"}]},
        "system": share | {"first": [{"row": 2, "id": "b", "what": "the role system", "where": "messages[0].role"}]},
    } == found["features"]


def test_functions_of_a_datasets_own_schema_are_found(tmp_path: Path) -> None:
    found = audit(written(tmp_path / "g.jsonl", B1), "B1")

    assert {Feature.TOOLS_DECLARED: 1, Feature.SYSTEM: 1} == {each: seen.rows for each, seen in found.features.items()}


def test_b8_is_tool_data_whatever_its_text_says() -> None:
    assert {Feature.TOOLS_DECLARED} == defaults_of("B8-smith-tool", "messages") == defaults_of("mine", "B8")
    assert set() == defaults_of("B4", "mine")


def test_the_digest_of_the_canonical_document_binds_every_row(tmp_path: Path) -> None:
    first = audit(written(tmp_path / "a.jsonl", MESSAGES))
    again = audit(written(tmp_path / "elsewhere.jsonl", MESSAGES))
    other = audit(written(tmp_path / "b.jsonl", [{**MESSAGES[0], "id": "z"}, *MESSAGES[1:3], MESSAGES[3]]))

    assert hashlib.sha256(canonical(first.document())).hexdigest() == first.sha256 == again.sha256
    assert first.sha256 != other.sha256


def test_workers_give_the_same_audit(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "messages": [{"role": "user", "content": f"{n} loaves " * 40}]} for n in range(1500)]
    path = written(tmp_path / "m.jsonl", rows)

    assert audit(path).document() == audit(path, workers=2).document()


# The verb


def test_one_line_a_row_with_its_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "m.jsonl", MESSAGES)

    assert 0 == main(["audit", str(path), "--rows", "--json", "--dataset", "messages"])

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [
        {"id": "a", "features": []},
        {"id": "b", "features": ["system"]},
        {"id": "a", "features": [], "rejected": "repeated"},
        {"id": "d", "features": [], "rejected": "wrong_shape"},
    ] == lines


def test_json_is_the_document_and_its_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "g.jsonl", B1)

    assert 0 == main(["audit", str(path), "--dataset", "B1", "--tools", "structured", "--json"])

    printed = json.loads(capsys.readouterr().out)
    digest = printed.pop("sha256")
    assert digest == hashlib.sha256(canonical(printed)).hexdigest()
    assert ("structured", ["tiny-kimi"]) == (printed["tools"], printed["special_text_of"])
    assert {"structured_tools", "system"} == set(printed["features"])


def test_the_table_names_rows_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["audit", str(written(tmp_path / "g.jsonl", B1)), "--dataset", "B1"])

    printed = capsys.readouterr().out
    assert "50.00%  tools_declared" in printed
    assert "row 1, B1-" in printed
    assert "tools are given, tools" in printed
    assert "names of control tokens of tiny-kimi" in printed


@pytest.mark.parametrize(
    "rows, arguments, words",
    [
        (MESSAGES[:1], ["--dataset", "B1"], "has the columns id, messages; B1 wants chat, system"),
        (MESSAGES[:1], ["--dataset", "B99"], "unknown dataset 'B99'; there are B1"),
        (MESSAGES[3:], [], "none of 1 rows gives a prompt (1 wrong_shape)"),
        ([], [], "holds no rows"),
        (None, [], "there is no such file"),
        (MESSAGES[:1], ["--tokenizer", "x"], "name it with --format"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence_and_exit_2(
    rows: Sequence[Mapping[str, object]] | None,
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "m.jsonl"
    if rows is not None:
        written(path, rows)

    assert 2 == main(["audit", str(path), *arguments])

    assert words in (said := capsys.readouterr().err)
    assert 1 == said.count("\n")


def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.jsonl",
        [{"id": f"r{n}", "messages": [{"role": "user", "content": "x"}]} for n in range(5000)],
    )
    command = f"{sys.executable} -m pipeline audit {path} --rows --json | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ('{"id":"r0","features":[]}\n', "") == (done.stdout, done.stderr)


def test_a_row_that_is_no_prompt_still_says_that_it_has_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "m.jsonl", [*MESSAGES[:1], LOST])

    assert 0 == main(["audit", str(path), "--rows", "--json"])

    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"id": "e", "features": ["tool_transcript"], "rejected": "wrong_shape"} == last
    assert {} == audit(path).features
