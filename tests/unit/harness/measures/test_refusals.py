"""Needless refusals: those of well-formed answers whose counts agree, and of prompts alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.fixtures.exchanges import file_of, line, text_ids, with_count
from harness.measures import refusals
from pipeline.records import Json, Reason


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No vocabulary but the embedded one."""
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", "")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def verdicts(folder: Path, *lines: dict[str, Json]) -> list[refusals.RefusalVerdict]:
    path = folder / "exchanges.jsonl"
    path.write_text(file_of(lines), "utf-8")
    return [refusals.verdict(*case) for case in refusals.cases(refusals.harvested(path))]


def many(count: int = 6) -> list[dict[str, Json]]:
    """Faithful answers of one route."""
    return [line(number, text_ids(number)) for number in range(count)]


def with_prompt_count(one: dict[str, Json], more: int) -> dict[str, Json]:
    body = json.loads(str(one["body"]))
    body["usage"]["prompt_tokens"] += more
    return {**one, "body": json.dumps(body)}


def test_answers_of_a_faithful_route_are_accepted(tmp_path: Path) -> None:
    """None of the traits has twenty votes; what was learned of few is taken all the same."""
    assert [None] * 6 == [one.reason for one in verdicts(tmp_path, *many())]


def test_a_wrong_count_is_no_needless_refusal(tmp_path: Path) -> None:
    *_, last = verdicts(tmp_path, *many(), with_count(line(9, text_ids(9)), 7))

    assert (Reason.COUNT_MISMATCH, False, False) == (last.reason, last.needless, last.by_prompt)


def test_a_whole_answer_to_another_prompt_is_due_to_the_prompt(tmp_path: Path) -> None:
    *_, last = verdicts(tmp_path, *many(), with_prompt_count(line(9, text_ids(9)), 5))

    assert (Reason.PROMPT_MISMATCH, False, True) == (last.reason, last.needless, last.by_prompt)


def test_a_whole_answer_that_is_refused_all_the_same_is_needless(tmp_path: Path) -> None:
    """One stray count looks like a stripped blank, and refuses the route's whole answers."""
    *found, _ = verdicts(tmp_path, *many(), with_count(line(9, text_ids(9)), 1))

    assert {(Reason.SEAM_LOSSY, True, False)} == {(one.reason, one.needless, one.by_prompt) for one in found}


def test_the_table_says_what_was_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, before = tmp_path / "exchanges.jsonl", tmp_path / "before.json"
    path.write_text(file_of([*many(), with_count(line(9, text_ids(9)), 7)]), "utf-8")
    assert 0 == refusals.main([str(path), "--json"])
    before.write_text(capsys.readouterr().out)
    assert 0 == refusals.main([str(path), "--against", str(before)])
    first, second, *_ = capsys.readouterr().out.splitlines()

    assert "all: 7 answers, accepted 6 (before 6), refused 1 (before 1), needless 0 (before 0)" in first
    assert "count_mismatch" in second
    assert 2 == refusals.main([str(tmp_path / "nothing.jsonl")])
