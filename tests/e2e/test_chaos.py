"""Chaos: a few whole runs behind a bad wire, and that the comparison of the books finds what it looks for."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.fixtures.runs import World, byte_format, emulating, make_world, pool, prompt_line
from harness.measures.chaos.checks import check
from pipeline.base.paths import ROOT
from pipeline.base.prompts import prompt_of
from pipeline.generation.backends.hosted import sample_id

ROWS = 6


def test_killed_runs_lose_nothing_and_pay_nothing_twice() -> None:
    """They run behind a bad wire."""
    command = [sys.executable, "-m", "harness", "chaos", "--runs", "3", "--prompts", "60", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    lines = done.stdout.splitlines()
    assert (0, "violations: none") == (done.returncode, lines[-1]), done.stdout + done.stderr
    assert "3 runs of 60 prompts" in lines[-2]
    counts = {name: int(count) for name, count in re.findall(r"([a-z][a-z_ ]*?) (\d+)(?:,|$)", lines[-2])}
    assert 180 == counts["accepted"] + counts["refused"] + counts["unknown"]
    assert counts["accepted"] > 90
    assert counts["sessions killed"] > 0


@pytest.fixture
def done(tmp_path: Path) -> World:
    """A world after a good run."""
    (tokenizer := tmp_path / "tokenizer").mkdir()
    world = make_world(tmp_path, byte_format(tokenizer))
    world.write_prompts(*(prompt_line(number) for number in range(ROWS)))
    with emulating(world, pool(world.fmt)) as live:
        live.run()
    return world


def faults(world: World, fault: str = "none") -> Path:
    """The log of a wire that did the same to every row."""
    with sqlite3.connect(world.ledger) as db:
        raws = dict(db.execute("SELECT row, hex(raw) FROM requests JOIN answers USING (identity, attempt)"))
    path = world.folder / "faults.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            prompt = prompt_of(json.loads(prompt_line(number)))
            digest = hashlib.sha256(bytes.fromhex(raws[prompt.id])).hexdigest()
            line = {"sample": sample_id(prompt), "fault": fault, "generation": None, "sha256": digest}
            file.write(json.dumps(line) + "\n")
    return path


def test_a_good_run_has_no_violation(done: World) -> None:
    found = check(done, faults(done))

    assert ({}, ROWS) == (dict(found.violations), found.counts["accepted"])
    assert found.counts["billed_pico"] == found.counts["settled_pico"] > 0


def execute(sql: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        with sqlite3.connect(world.ledger) as db:
            db.execute(sql)

    return change


def again(world: World) -> None:
    """The emulator answered the first row once more."""
    with world.oracle.open("a") as file:
        file.write(world.oracle.read_text().splitlines()[0] + "\n")


def other_ids(world: World) -> None:
    """The model emitted something else."""
    lines = [json.loads(line) for line in world.oracle.read_text().splitlines()]
    lines[0]["output_ids"][0] += 1
    world.oracle.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "change, kinds",
    [
        (
            execute("UPDATE requests SET state = 'failed_free', cost_pico = 0 WHERE row = 'row-1'"),
            {"lost paid answer", "money"},
        ),
        (execute("UPDATE requests SET cost_pico = cost_pico + 1 WHERE row = 'row-1'"), {"money"}),
        (execute("UPDATE answers SET raw = CAST(raw || ' ' AS BLOB)"), {"changed answer"}),
        (again, {"double payment", "money"}),
        (other_ids, {"wrong row"}),
    ],
)
def test_what_is_looked_for_is_found(change: Callable[[World], None], kinds: set[str], done: World) -> None:
    log = faults(done)

    change(done)

    assert kinds == set(check(done, log).violations)


def test_a_row_that_its_fault_forbids_is_found(done: World) -> None:
    assert {"row that must be refused": ROWS} == dict(check(done, faults(done, "another provider")).violations)


def test_rows_that_went_missing_are_found(done: World) -> None:
    log = faults(done)
    (shard,) = done.out.glob("shard-*.parquet")
    shard.unlink()

    assert {"lost row": ROWS} == dict(check(done, log).violations)
