"""`python -m pipeline evaluate` and `export` as whole processes, on the tiny target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.drafter_samples import TOKENIZER, row, run_folder
from harness.tiny_target.provenance import WEIGHTS
from pipeline.cli import main
from pipeline.records import Evidence

ROOT = Path(__file__).parents[2]
PROMPTS = WEIGHTS.parent / "prompts.jsonl"


def pipeline(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", *map(str, arguments)]
    settings = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=settings)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drafter") / "untrained"
    done = pipeline("export", "untrained", out, "--target", WEIGHTS, "--draft-vocabulary", 512, "--seed", 3)
    assert (0, {"out": str(out)}) == (done.returncode, json.loads(done.stdout))
    return out


def test_an_untrained_drafter_is_lossless_in_every_shape(drafter: Path, tmp_path: Path) -> None:
    """A table of training rows is measured beside it on the same prompts."""
    rows = run_folder(tmp_path / "rows", [row("a", (5, 6), (7, 8, 770), Evidence.ENGINE_IDS)])
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


def test_there_and_back_through_speculators_format_is_the_same_drafter(drafter: Path, tmp_path: Path) -> None:
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
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_evaluated_is_said_in_one_sentence(
    drafter: Path, change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: what is loaded once need not be loaded five times."""
    status = main(["evaluate", str(drafter), "--target", str(WEIGHTS), "--prompts", str(PROMPTS), *change])

    assert 2 == status
    assert said in capsys.readouterr().err


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
