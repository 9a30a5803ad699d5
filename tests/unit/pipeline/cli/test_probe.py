"""`python -m pipeline probe`: what cannot be asked is one sentence, before the gate and before any client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.paths import ROOT
from pipeline.cli.main import main

TINY = "drafter-gate/tiny-kimi"
HERE = ("--base-url", "http://127.0.0.1:9/api/v1")


@pytest.mark.parametrize(
    "options, says",
    [
        (("--route", "local", "--model", TINY), "the local route does nothing to text"),
        (("--route", "emulator/chutes", "--model", TINY), "the emulator route needs --base-url URL"),
        (("--route", "emulator/chutes", "--model", "a/b", *HERE), "which format a/b answers in is not known here"),
        (("--route", "openrouter/chutes", "--model", TINY, *HERE), "--base-url is for the emulator"),
        (("--route", "nowhere/chutes", "--model", TINY), "is no route"),
        (("--route", "emulator/chutes", "--model", TINY, *HERE, "--only", "zebra"), "no probe's id holds 'zebra'"),
        (("--route", "emulator/chutes", "--model", TINY, *HERE, "--format", "morse"), "unknown format 'morse'"),
        (("--route", "emulator/chutes", "--model", TINY, *HERE, "--out", "/dev/null"), "/dev/null is a file"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_2(
    options: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["probe", "--budget-usd", "1", "--out", str(tmp_path / "out"), *options])

    said = capsys.readouterr().err
    assert 2 == status
    assert says in said
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["--route", "--model", "--budget-usd", "--out"])
def test_what_is_needed_is_asked_for(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--route": "emulator/chutes", "--model": TINY, "--budget-usd": "1", "--out": "out"}
    words = [word for name, value in given.items() if name != option for word in (name, value)]

    with pytest.raises(SystemExit):
        main(["probe", *words])
    assert option in capsys.readouterr().err


def test_no_client_is_imported_before_the_gate_has_answered() -> None:
    code = (
        "import sys; from pipeline.cli.main import main;"
        f"main(['probe', '--route', 'emulator/chutes', '--model', '{TINY}', '--budget-usd', '1',"
        " '--out', '/nowhere/out', '--base-url', 'http://127.0.0.1:9/api/v1']);"
        "print(sorted({'openai', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert "[]" == done.stdout.strip(), done.stderr
