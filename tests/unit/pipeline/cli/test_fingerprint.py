"""The verb `fingerprint`: traits on stdout, the account on stderr, plain errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.fixtures.exchanges import file_of, line, text_ids
from harness.views.roundtrip import MODEL
from pipeline.base.paths import ROOT
from pipeline.cli.main import main
from pipeline.proof.fingerprint import TraitName, read_fingerprints

TINY = f"tiny-kimi={ROOT / 'harness' / 'tiny_target' / 'weights'}"


@pytest.fixture
def exchanges(tmp_path: Path) -> Path:
    path = tmp_path / "exchanges.jsonl"
    path.write_text(file_of([line(n, text_ids(n)) for n in range(25)]), encoding="utf-8")
    return path


def test_json_is_one_trait_a_line_that_reads_as_a_fingerprint(
    exchanges: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["fingerprint", str(exchanges), "--tokenizer", TINY, "--json"])
    printed = capsys.readouterr()
    (tmp_path / "learned.jsonl").write_text(printed.out, encoding="utf-8")
    (found,) = read_fingerprints(tmp_path / "learned.jsonl")
    keys = ["provider", "model", "stream", "trait", "value", "n", "proven", "counterexamples"]

    assert 0 == status
    assert [keys] * len(found.traits) == [list(json.loads(one)) for one in printed.out.splitlines()]
    assert (MODEL, True) == (found.model, found.require(TraitName.END_COUNTED))
    assert "25 lines: 25 answers learned from, 0 no exchange\n" == printed.err


def test_the_table_shows_what_a_proof_lacks_and_who_dissents(
    exchanges: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = line(30, text_ids(30, "half a \ufffd character"))
    exchanges.write_text(exchanges.read_text(encoding="utf-8") + file_of([odd]), encoding="utf-8")

    assert 0 == main(["fingerprint", str(exchanges), "--tokenizer", TINY])
    rows = [row.split("│") for row in capsys.readouterr().out.splitlines() if "end_token_counted" in row]
    assert [
        ["Plain", MODEL, "json", "end_token_counted", "true", "25", "yes"],
    ] == [[cell.strip() for cell in row[1:8]] for row in rows]
    assert "00000000001e (U+FFFD stands in its text)" in rows[0][8]


def test_a_name_from_the_wire_moves_no_cursor(exchanges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = json.dumps(line(1, text_ids(1))).replace('\\"Plain\\"', '\\"Pl\\\\u001b[31main\\"')
    exchanges.write_text(odd + "\n", encoding="utf-8")

    assert 0 == main(["fingerprint", str(exchanges), "--tokenizer", TINY])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "Pl\\x1b[31main" in printed


def test_bad_lines_are_told_and_lose_no_others(exchanges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges.write_text("nonsense\n" + exchanges.read_text(encoding="utf-8") + "{}\n", encoding="utf-8")

    assert 0 == main(["fingerprint", str(exchanges), "--tokenizer", TINY, "--json"])
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("line 1: not JSON")
    assert second.startswith("line 27: the key 'id' is absent")
    assert "27 lines: 25 answers learned from, 2 no exchange" == third


def test_a_file_of_other_models_teaches_nothing(exchanges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges.write_text(exchanges.read_text(encoding="utf-8").replace(MODEL, "some/other"), encoding="utf-8")

    assert 1 == main(["fingerprint", str(exchanges), "--tokenizer", TINY, "--json"])
    printed = capsys.readouterr()
    assert "" == printed.out
    assert "25 not learned from: the model has no format here (some/other 25)\n" in printed.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["/nowhere/e.jsonl", "--tokenizer", TINY], "/nowhere/e.jsonl: no exchanges can be read there"),
        ([str(ROOT), "--tokenizer", TINY], "no exchanges can be read there"),
        ([str(ROOT / "LICENSE"), "--tokenizer", TINY], "holds no exchange; line"),
        (["e.jsonl", "--tokenizer", "tiny-kimi=/nowhere"], "/nowhere/tiktoken.model: no tokenizer there"),
        (["e.jsonl", "--tokenizer", "gpt-2=/nowhere"], "unknown format 'gpt-2'"),
        (["e.jsonl", "--tokenizer", TINY, "--tokenizer", TINY], "--tokenizer names tiny-kimi twice"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_read_is_one_sentence_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["fingerprint", *arguments])
    printed = capsys.readouterr()

    assert (2, "") == (status, printed.out)
    assert printed.err.startswith("error: ")
    assert said in printed.err


@pytest.mark.parametrize("arguments", [[], ["e.jsonl"], ["e.jsonl", "--tokenizer", "tiny-kimi"]], ids=str)
def test_unusable_arguments_are_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["fingerprint", *arguments])

    assert left.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
