"""The bench runs to its end on any machine and says each figure with its aim."""

from __future__ import annotations

import re

import pytest

from harness.measures import reconstruct_speed as bench
from pipeline.formats.registry import find_tokenizer

FIGURE = re.compile(r"(\d+\.\d\d) of (tiktoken's|tokenizers') speed, (?:no aim|aim \d\.\d\d)")
WORKERS = re.compile(r"two workers against one: (\d+\.\d\d) by the clock, (\d+\.\d\d) by time spent, aim 1\.70")
BRIEF = ["--tokens", "100", "--rounds", "1"]


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "COPIES", {"json": 2, "stream": 1})


def test_every_figure_of_a_format_is_a_ratio_with_its_aim(capsys: pytest.CaptureFixture[str]) -> None:
    status = bench.main(["--format", "tiny-kimi", *BRIEF])
    head, *lines = capsys.readouterr().out.splitlines()
    figures = [FIGURE.search(line) for line in lines[:6]]
    workers = [WORKERS.search(line) for line in lines[6:]]

    assert (0, "tiny-kimi", 8) == (status, head.partition(",")[0], len(lines))
    assert all(found is not None and float(found[1]) > 0 for found in figures)
    assert all(found is not None and float(found[2]) > 0 for found in workers)
    assert [False, False, True, False, True, False] == ["aim 0.70" in line for line in lines[:6]]


def test_families_without_a_vocabulary_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_tokenizer", lambda _: None)
    _, *lines = bench.of_families(bench.Size(100, 1))

    assert list(bench.FAMILIES) == [line.split()[0] for line in lines]
    assert all("is not here" in line for line in lines)


def test_a_family_is_measured_against_its_users_library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers", reason="the library is not installed")
    here = [name for name in bench.FAMILIES if not name.startswith("kimi") and find_tokenizer(name)]
    if not here:
        pytest.skip("no vocabulary in $DRAFTER_GATE_TOKENIZERS")
    monkeypatch.setattr(bench, "FAMILIES", {here[0]: bench.FAMILIES[here[0]]})
    _, line = bench.of_families(bench.Size(100, 1))
    found = FIGURE.search(line)

    assert found is not None
    assert (here[0], "tokenizers'") == (line.split()[0], found[2])
    assert float(found[1]) > 0


def test_a_vocabulary_that_is_not_found_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == bench.main(["--format", "qwen3", "--tokenizer", "/nowhere"])
    assert "no tokenizer there" in capsys.readouterr().err
