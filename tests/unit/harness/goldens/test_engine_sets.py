"""A golden set recorded and checked: written once, left as it is where nothing changed, and failing where ids did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.goldens.engine_sets import FOLDER, GoldenSet, GoldenSetError, compare, comparison_lines, read, settled
from pipeline.generation.engines.output import EngineOutput


@pytest.fixture(scope="module")
def recorded() -> GoldenSet:
    return read(FOLDER / "sglang-cpu.jsonl")


def changed(golden: GoldenSet, *, logprob: float = -0.1) -> GoldenSet:
    """Another first token, as sure as said."""
    first = golden.answers[0]
    other = EngineOutput((first.ids[0] + 1,), (logprob,), ((first.ids[0], -2.0),), finished=False)
    return replace(golden, answers=(other, *golden.answers[1:]))


def test_a_new_set_is_written_and_the_same_one_left_as_it_is(
    recorded: GoldenSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == settled(recorded, tmp_path, "sglang-cpu", check=False)
    assert "written: sglang-cpu.jsonl, 256 answers\n" == capsys.readouterr().out
    written = (tmp_path / "sglang-cpu.jsonl").stat().st_mtime_ns

    assert 0 == settled(recorded, tmp_path, "sglang-cpu", check=False)
    assert "beside sglang-cpu as recorded: SAME, 0 answers differ\n" == capsys.readouterr().out
    assert written == (tmp_path / "sglang-cpu.jsonl").stat().st_mtime_ns
    assert recorded.answers == read(tmp_path / "sglang-cpu.jsonl").answers


def test_a_check_fails_for_other_ids_and_writes_nothing(
    recorded: GoldenSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settled(recorded, tmp_path, "sglang-cpu", check=False)
    before = (tmp_path / "sglang-cpu.jsonl").read_bytes()

    assert 1 == settled(changed(recorded), tmp_path, "sglang-cpu", check=True)
    assert "CHANGED, 1 answers differ\n  prompt 0, token 0: " in capsys.readouterr().out
    assert before == (tmp_path / "sglang-cpu.jsonl").read_bytes()


def test_a_set_that_is_not_recorded_cannot_be_checked(recorded: GoldenSet, tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match=r"sglang-cpu.jsonl is not recorded\. Run: nox -s goldens"):
        settled(recorded, tmp_path, "sglang-cpu", check=True)


def test_sets_of_other_engines_are_told_beside_it(
    recorded: GoldenSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settled(recorded, tmp_path, "sglang-cpu", check=False)
    settled(replace(recorded, key={**recorded.key, "engine": "vllm"}), tmp_path, "vllm-cpu", check=False)

    assert "beside sglang-cpu: SAME (another engine), 0 answers differ\n" in capsys.readouterr().out


def test_a_set_of_an_older_version_is_stale(recorded: GoldenSet) -> None:
    older = replace(recorded, key={**recorded.key, "version": "0.5.22"})

    (line,) = comparison_lines("it as recorded", compare(older, recorded))
    assert line.startswith("beside it as recorded: SAME (another version), STALE: ")
