"""The measure of tool detection, on rows of our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measures.tool_detection import detect, main, prompt_of_any, table

CALL = {"role": "assistant", "content": '<functioncall> {"name": "bake"}'}
ASK = {"role": "user", "content": "Bread?"}
TOOL = {"name": "bake", "parameters": {"type": "object"}}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(label: str, *messages: object, **more: object) -> dict[str, object]:
    return {"id": label, "messages": messages, "label": label, "borderline": False, **more}


def test_the_matrix_counts_labels_against_what_is_found(tmp_path: Path) -> None:
    rows = [
        labelled("tool_transcript", ASK, CALL),
        labelled("tools_declared", ASK, tools=[TOOL]),
        labelled("tools_declared", ASK),
        labelled("none", ASK),
        labelled("none", ASK, CALL),
        labelled("tools_declared", ASK, borderline=True),
    ]

    found = detect([written(tmp_path / "r.jsonl", *rows)])

    assert {
        ("tool_transcript", "tool_transcript"): 1,
        ("tools_declared", "tools_declared"): 1,
        ("tools_declared", "none"): 1,
        ("none", "none"): 1,
        ("none", "tool_transcript"): 1,
    } == found.judged
    assert (1, 2 / 3, False) == (found.false_alarms, found.recall, found.is_good)
    assert {("tools_declared", "none"): 1} == found.borderline
    assert "false alarms 1, recall 0.667, right 3 of 5" in table(found)


@pytest.mark.parametrize(
    "row, contents",
    [
        ({"turns": ["a", "b"]}, ["a", "b"]),
        ({"question": [[{"role": "user", "content": "a"}]]}, ["a"]),
        ({"prompt": "a"}, ["a"]),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, ["a", "b"]),
        ({"messages": [{"role": "user", "content": "a"}]}, ["a"]),
    ],
)
def test_rows_of_any_evaluation_schema_are_read(row: dict[str, object], contents: list[str]) -> None:
    prompt = prompt_of_any(row, "x")  # type: ignore[arg-type]  # JSON

    assert contents == [message["content"] for message in prompt.messages]


def test_rows_without_tools_and_labels_must_not_be_hit(tmp_path: Path) -> None:
    rows = [{"turns": ["a"]}, {"messages": [ASK, CALL]}, {"question": [[ASK]], "function": [TOOL]}]

    found = detect([written(tmp_path / "r.jsonl", *rows)])

    assert (2, ["r.jsonl:2"], False) == (found.toolless, found.hits, found.is_good)


def test_the_exit_status_says_whether_the_aims_are_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path / "good.jsonl", labelled("none", ASK))
    bad = written(tmp_path / "bad.jsonl", labelled("none", ASK, CALL))

    assert [0, 1, 2] == [main([str(path)]) for path in (good, bad, tmp_path / "none.jsonl")]
    assert "false alarms 0, recall 1.000, right 1 of 1" in capsys.readouterr().out
