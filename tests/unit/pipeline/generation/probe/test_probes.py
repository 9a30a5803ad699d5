"""The committed probes: what is read of them, and when an answer is as it is known to be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pipeline.base.paths import ROOT
from pipeline.formats.registry import open_format
from pipeline.gate.gate import PROBES
from pipeline.generation.probe.probes import Known, ProbesError, read_probes
from pipeline.proof.locations import special_text
from pipeline.records import Completion, ToolCall, ToolMode

LINE = {
    "id": "a",
    "messages": [{"role": "user", "content": "hi"}],
    "thinking": False,
    "tool_mode": "none",
    "max_tokens": 8,
    "temperature": 0.0,
    "known": {"content": "hi"},
}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "probes.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_a_file_is_read_with_its_digest(tmp_path: Path) -> None:
    path = written(tmp_path, LINE, {**LINE, "id": "b", "few": True, "tool_mode": "raw"})

    found = read_probes(path)

    assert hashlib.sha256(path.read_bytes()).hexdigest() == found.sha256
    assert [("a", False, ToolMode.NONE), ("b", True, ToolMode.RAW)] == [
        (probe.id, probe.few, probe.tool_mode) for probe in found.probes
    ]
    assert ["probe", "probe"] == [probe.prompt.dataset for probe in found.probes]


@pytest.mark.parametrize(
    "lines, says",
    [
        ([{**LINE, "known": {}}], "line 1: no probe"),
        ([{**LINE, "known": {"text": "x"}}], "line 1: no probe"),
        ([LINE, {**LINE, "id": "b", "tool_mode": "all"}], "line 2: no probe"),
        ([{**LINE, "prompt": "x"}], "unknown key 'prompt'"),
        ([{key: value for key, value in LINE.items() if key != "max_tokens"}], "line 1: no probe"),
        ([LINE, LINE], "an id that stands twice"),
        ([], "no probe"),
    ],
)
def test_a_line_that_is_no_probe_refuses_the_file(lines: list[object], says: str, tmp_path: Path) -> None:
    with pytest.raises(ProbesError, match=says):
        read_probes(written(tmp_path, *lines))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProbesError, match="Run: git checkout goldens/probes"):
        read_probes(tmp_path / "none.jsonl")


def test_a_few_or_only_those_of_a_name_can_be_chosen(tmp_path: Path) -> None:
    found = read_probes(written(tmp_path, LINE, {**LINE, "id": "bat", "few": True}, {**LINE, "id": "cat"}))

    assert ["bat"] == [probe.id for probe in found.chosen(few=True)]
    assert ["bat", "cat"] == [probe.id for probe in found.chosen(few=False, only=("at",))]
    with pytest.raises(ProbesError, match="no probe's id holds 'dog'; they are a, bat, cat"):
        found.chosen(few=False, only=("dog",))


def answer(content: str = "", *calls: str, finish: str = "stop") -> Completion:
    return Completion(None, content, tuple(ToolCall(f"{name}:0", name, "{}") for name in calls), finish_reason=finish)


@pytest.mark.parametrize(
    "known, completion, differs",
    [
        (Known(content="a\r\nb"), answer("a\r\nb"), ""),
        (Known(content="a\r\nb"), answer("a\nb"), "character 1 is '\\nb' where '\\r\\nb' was asked for"),
        (Known(content="ab "), answer("ab"), "character 2 is '' where ' ' was asked for"),
        (Known(contains=("43",)), answer("It is 43."), ""),
        (Known(contains=("43",)), answer("It is 44."), "'43' is not in it"),
        (Known(calls=("get_time",)), answer("", "get_time", finish="tool_calls"), ""),
        (Known(calls=("get_time",)), answer("<|tool_call_begin|>functions.get_time:0"), ""),
        (Known(calls=("get_time",)), answer("Noon."), "'get_time' is not in it"),
        (Known(cut=True), answer("one", finish="length"), ""),
        (Known(cut=True), answer("one"), "finish_reason is stop"),
        (Known(contains=("one",)), answer("one", finish="length"), "finish_reason is length"),
    ],
)
def test_an_answer_is_held_against_what_is_known(known: Known, completion: Completion, differs: str) -> None:
    assert differs == known.differs(completion)


# The committed file


def test_committed_probes_are_few_dozen_and_a_handful_show_drift() -> None:
    found = read_probes(ROOT / PROBES)

    assert 20 <= len(found.probes) <= 30
    assert 5 <= len(found.chosen(few=True)) <= 10


def test_committed_probes_prove_line_ends() -> None:
    """Twenty answers with both kinds of line ends are a proof; each is asked three times."""
    texts = [probe.known.content or "" for probe in read_probes(ROOT / PROBES).probes]
    both = [text for text in texts if "\r\n" in text and "\n" in text.replace("\r\n", "")]

    assert 3 * (len(both) - 1) >= 20


def test_no_committed_probe_spells_a_control_token() -> None:
    """Engines read such a prompt in several ways, so nothing could be learned of it."""
    fmt = open_format("tiny-kimi")

    assert [None] == list({special_text(fmt, probe.prompt) for probe in read_probes(ROOT / PROBES).probes})
