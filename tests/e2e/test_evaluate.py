"""`python -m pipeline evaluate` and `export` as whole processes, on the tiny target."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.fixtures.drafters import TOKENIZER, row, run_folder
from harness.fixtures.forked import Forked
from harness.tiny_target.provenance import WEIGHTS
from pipeline.base.paths import ROOT
from pipeline.cli.main import main
from pipeline.formats.registry import TINY_SHA256
from pipeline.records import Evidence

PROMPTS = WEIGHTS.parent / "prompts.jsonl"


def pipeline(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return Forked.start(ROOT, [*map(str, arguments)], {**os.environ, **environment}).completed()


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drafter") / "untrained"
    done = pipeline("export", "untrained", out, "--target", WEIGHTS, "--draft-vocabulary", 512, "--seed", 3)
    assert (0, {"out": str(out)}) == (done.returncode, json.loads(done.stdout))
    return out


def test_an_untrained_drafter_is_lossless_in_every_shape(drafter: Path, tmp_path: Path) -> None:
    """A table of training rows is measured beside it on the same prompts."""
    rows = run_folder(
        tmp_path / "rows", [row("a", (5, 6), (7, 8, 770), Evidence.ENGINE_IDS)], tokenizer_sha256=TINY_SHA256
    )
    shapes = ("--shape", "chain:3", "--shape", "tree:3,2", "--shape", "dynamic:3,3,6")
    few = ("--limit", "3", "--max-tokens", "24", "--bigram", rows)

    done = pipeline("evaluate", drafter, "--target", WEIGHTS, "--prompts", PROMPTS, *shapes, *few, "--json")

    found = json.loads(done.stdout)
    assert 0 == done.returncode
    assert (18, 3, []) == tuple(found["lossless"][key] for key in ("answers", "prompts", "failures"))
    keys = [(cell["set"], cell["drafter"], cell["shape"], cell["prompts"]) for cell in found["sets"]]
    names = ("untrained", "bigram")
    assert [("prompts", name, shape, 3) for shape in shapes[1::2] for name in names] == keys
    assert all(cell["acceptance_length"] >= 1 for cell in found["sets"])


def test_the_table_says_what_a_person_asks(drafter: Path) -> None:
    few = ("--limit", "2", "--max-tokens", "8", "--untrained", "4")

    done = pipeline("evaluate", drafter, "--target", WEIGHTS, "--prompts", PROMPTS, *few)

    lines = done.stdout.splitlines()
    assert 0 == done.returncode
    assert lines[0].split()[:6] == ["set", "drafter", "shape", "prompts", "tokens", "length"]
    assert lines[1].split()[:4] == ["prompts", "untrained", "chain:4", "2"]
    assert lines[2].startswith("prompts          untrained, seed 4 chain:4")
    assert lines[3].startswith("lossless: 4 speculative answers to 2 prompts")


def test_through_speculators_format_and_back_is_the_same(drafter: Path, tmp_path: Path) -> None:
    there = pipeline("export", "to-speculators", drafter, tmp_path / "theirs", "--target", WEIGHTS)
    back = pipeline("export", "from-speculators", tmp_path / "theirs", tmp_path / "ours", "--target", WEIGHTS)

    assert (0, 0) == (there.returncode, back.returncode)
    for name in ("config.json", "model.safetensors"):
        assert (drafter / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()


@pytest.mark.parametrize(
    "change, said",
    [
        (["--shape", "ring:3"], "error: 'ring:3' is no shape"),
        (["--layers", "1,x,4"], "error: --layers 1,x,4 are no layers"),
        (["--max-tokens", "4000"], "error: none of 60 prompts can be evaluated"),
        (["--format", "kimi"], "error: unknown format 'kimi'"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--shape", "chain:2", "--shape", "tree:2", "--shape", "chain:2"], "error: --shape chain:2 is given twice."),
        (["--untrained", "9" * 23], f"error: {'9' * 23} is not a seed: give a whole number from"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_evaluated_is_said_in_one_sentence(
    drafter: Path, change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: what is loaded once need not be loaded five times."""
    status = main(["evaluate", str(drafter), "--target", str(WEIGHTS), "--prompts", str(PROMPTS), *change])

    assert 2 == status
    assert said in capsys.readouterr().err


def evaluated(drafter: Path, *options: object) -> int:
    few = ["--target", str(WEIGHTS), "--limit", "1", "--max-tokens", "4"]
    return main(["evaluate", str(drafter), *few, *map(str, options)])


def test_an_id_that_the_target_does_not_know_is_refused(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is decoded before."""
    path = tmp_path / "ids.jsonl"
    path.write_text('{"id": "a", "prompt_ids": [768, 5]}\n{"id": "b", "prompt_ids": [1024]}\n')

    assert 2 == evaluated(drafter, "--prompts", path)
    assert f"error: {path}, line 2 has the id 1024, and the target knows ids below 1024" in capsys.readouterr().err


@pytest.mark.parametrize(
    "ids, tokenizer, said",
    [
        ((5000, 6), TINY_SHA256, "error: the rows have the id 5000 and the target"),
        ((5, 6), TOKENIZER, "error: the rows are in the vocabulary abababababab and the target"),
        ((-5, 6), TINY_SHA256, "error: row 'a' in "),
        ((5,) * 4000, TINY_SHA256, "error: each of 1 rows of --bigram is longer than the target's context of "),
    ],
)
def test_a_table_of_rows_in_another_vocabulary_is_refused(
    drafter: Path, tmp_path: Path, ids: tuple[int, ...], tokenizer: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run_folder(tmp_path / "rows", [row("a", ids, (7, 770))], tokenizer_sha256=tokenizer)

    assert 2 == evaluated(drafter, "--prompts", PROMPTS, "--bigram", rows)
    assert said in capsys.readouterr().err


def test_rows_longer_than_the_context_are_left_out_and_named(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [row("a", (5,) * 4000, (7, 770)), row("b", (5,), (7, 770))]
    rows = run_folder(tmp_path / "rows", given, tokenizer_sha256=TINY_SHA256)

    assert 0 == evaluated(drafter, "--prompts", PROMPTS, "--bigram", rows)
    assert "1 rows left out of --bigram: they exceed the target's context of " in capsys.readouterr().err


def test_a_drafter_named_like_a_baseline_is_refused_beside_it(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = shutil.copytree(drafter, tmp_path / "untrained, seed 3")

    assert 2 == evaluated(named, "--prompts", PROMPTS, "--untrained", "3")
    assert "error: two drafters would be reported as 'untrained, seed 3': " in capsys.readouterr().err
    assert 0 == evaluated(named, "--prompts", PROMPTS, "--untrained", "4")


def test_a_set_named_like_the_line_over_all_is_refused(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside another set, that is."""
    path = tmp_path / "all.jsonl"
    path.write_text('{"id": "a", "prompt_ids": [768, 5]}\n')

    assert 2 == evaluated(drafter, "--prompts", path, PROMPTS)
    assert "error: a set of prompts is named 'all', as the line over all sets is." in capsys.readouterr().err


def test_a_directory_without_a_drafter_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["evaluate", str(tmp_path), "--target", str(WEIGHTS), "--prompts", str(PROMPTS)])

    assert 2 == status
    assert f"error: {tmp_path} holds no config.json with model.safetensors" in capsys.readouterr().err


def test_a_gpu_is_asked_for_at_the_gate(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tmp_path / "no attestation"))

    status = main(["evaluate", str(drafter), "--target", str(WEIGHTS), "--prompts", str(PROMPTS), "--device", "cuda"])

    assert 3 == status
    assert "refused: " in capsys.readouterr().err


def test_rows_leave_only_through_the_gate(tmp_path: Path) -> None:
    rows = run_folder(tmp_path / "rows", [row("a", (5, 6), (7, 8, 2))])
    assert TOKENIZER in (rows / "manifest.json").read_text("utf-8")

    done = pipeline("export", "rows", tmp_path / "out", rows, DRAFTER_GATE_STATE=str(tmp_path / "no attestation"))

    assert 3 == done.returncode
    assert "refused: " in done.stderr
    assert "1 rows of 5 tokens, 3 of them emitted" in done.stderr
    assert not (tmp_path / "out").exists()
