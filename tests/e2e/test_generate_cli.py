"""`python -m pipeline generate` as a user runs it: past the real gate of an attested copy. Needs no torch."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fixtures.runs import ROWS, SlowAnswerer, World, emulating, pool, prompt_line
from harness.fixtures.trees import Copy
from pipeline.formats.registry import open_format


@pytest.fixture
def slow() -> SlowAnswerer:
    return SlowAnswerer(pool(open_format("tiny-kimi")))


@pytest.fixture
def live(tmp_path: Path, slow: SlowAnswerer) -> Iterator[World]:
    world = World(tmp_path, open_format("tiny-kimi"))
    world.write_prompts("nonsense", *(prompt_line(number) for number in range(1, ROWS)))
    with emulating(world, slow) as found:
        yield found


def command(live: World, *options: str) -> tuple[str, ...]:
    where = ("--prompts", str(live.folder / "prompts.jsonl"), "--out", str(live.out), "--base-url", live.url)
    flags = ("--route", "emulator/chutes", "--budget-usd", "1", "--return-token-ids", "--concurrency", "4")
    return ("generate", *where, *flags, *options)


def test_the_table_gives_the_outcome_and_the_next_command(copy: Copy, live: World) -> None:
    done = copy.run("-m", "pipeline", *command(live))

    assert 0 == done.returncode, done.stderr
    for words in ("complete", "by engine_ids", str(ROWS - 1), "malformed_input", "emulated: no money", "Next: read"):
        assert words in done.stdout
    assert str(live.out) in done.stdout


def test_json_is_one_object_with_the_same(copy: Copy, live: World) -> None:
    done = copy.pipeline(*command(live, "--json"))

    found = json.loads(done.stdout)
    assert (0, "complete", 0) == (done.returncode, found["outcome"], found["exit"])
    assert ({"engine_ids": ROWS - 1}, {"malformed_input": 1}) == (
        found["accepted_by_evidence"],
        found["refused_by_reason"],
    )
    assert [] == found["tree_changed"]


def test_ctrl_c_is_exit_130_and_the_same_command_goes_on(copy: Copy, live: World, slow: SlowAnswerer) -> None:
    slow.seconds = 0.1
    arguments = [copy.python, "-m", "pipeline", *command(live)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(arguments, cwd=copy.root, env=copy.environment, text=True, **pipes)  # type: ignore[call-overload]  # the two pipes
    while slow.asked < 10 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    slow.seconds = 0.0
    again = copy.pipeline(*command(live, "--json"))

    assert (130, False) == (process.returncode, "Traceback" in err)
    assert "interrupted" in out
    assert "in flight, for 120 s; press again to break off" in err
    assert "Next, to go on: python -m pipeline generate" in out
    found = json.loads(again.stdout)
    assert (ROWS - 1, 0) == (found["rows"]["accepted"], found["rows"]["unknown"])
    assert {1} == set(live.asked().values())


def test_a_shut_gate_sends_nothing_and_is_exit_3(copy: Copy, live: World, tmp_path: Path) -> None:
    done = copy.pipeline(*command(live), DRAFTER_GATE_STATE=str(tmp_path / "elsewhere"))

    assert (3, "") == (done.returncode, done.stdout)
    assert "Run: nox -s contract" in done.stderr
    assert ([], False) == (live.entries(), live.out.exists())


def test_a_feature_that_no_contract_covers_is_refused_by_name(copy: Copy, live: World) -> None:
    system = {"id": "s", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    live.write_prompts(json.dumps(system))

    done = copy.pipeline(*command(live))

    assert 3 == done.returncode
    assert "no contract on emulator/chutes that passed covers: system" in done.stderr
    assert [] == live.entries()
