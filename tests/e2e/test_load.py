"""The load measure runs: both sides over one raw peer, and every row of ours proven."""

from __future__ import annotations

import re
import subprocess
import sys

from pipeline.base.paths import ROOT


def load(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "harness", "load", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: an aim is missed, which a busy machine may
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def test_a_run_beside_the_bare_loop_fails_no_request() -> None:
    lines = load("--part", "speed", "--in-flight", "64", "--requests", "100", "--rounds", "1")

    figures = [
        re.fullmatch(r" +64 in flight: (\S+) by the clock, (\S+) by .*, 0 failed(  MISSED)?", line) for line in lines
    ]
    assert 2 == len([found for found in figures if found])


def test_the_ledger_and_a_resume_on_a_large_one_are_measured() -> None:
    ledger, resume = load("--part", "ledger", "--part", "resume", "--ledger-rows", "30000")

    assert re.fullmatch(r"ledger: \d+ microseconds of processor time a request", ledger)
    assert re.fullmatch(r"resume on a ledger of 30000 rows: \S+ s(  MISSED)?", resume)
