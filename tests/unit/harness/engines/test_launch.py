"""An engine's processes are ended with the block that started them, by real trees of processes. Needs Linux."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from harness.engines import launch
from harness.engines.keeper import GRACE_SECONDS, descendants
from harness.engines.launch import EngineStartError, kept, running
from harness.engines.settings import Name, Start
from pipeline.base.paths import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines are kept on Linux alone")

TREE = """
import os, signal, subprocess, sys, time
depth = int(sys.argv[1])
if depth == 1:  # as stubborn as an engine's worker: out of the session, deaf to SIGTERM
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth:
    for _ in range(2):
        subprocess.Popen([sys.executable, "-c", os.environ["TREE"], str(depth - 1)])
if depth == 2 and "orphan" in os.environ:
    sys.exit(7)
time.sleep(120)
"""
WHOLE = 7
OWNER = """
import os, sys, time
from pathlib import Path
from harness.engines import launch
from harness.engines.launch import kept
launch.KEEPER = Path(os.environ["KEEPER"])
with open(os.devnull, "wb") as log, kept([sys.executable, "-c", os.environ["TREE"], "2"], os.environ, log) as process:
    print(process.pid, flush=True)
    time.sleep(120)
"""
SERVER = """#!{python}
import sys, time
sys.path.insert(0, {root!r})
from harness.engines.stand_in import StandIn, standing_in
port = int(sys.argv[sys.argv.index("--port") + 1])
print("loading", flush=True)
{before}
with standing_in(StandIn({name!r}, lambda prompt: [99], 99), port=port):
    time.sleep(120)
"""


@pytest.fixture(autouse=True)
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper with less patience: the processes of these tests are deaf on purpose, and each test waits for it."""
    text = launch.KEEPER.read_text("utf-8")
    quick = text.replace(f"GRACE_SECONDS = {GRACE_SECONDS}", "GRACE_SECONDS = 1.0")
    assert quick != text
    (tmp_path / "keeper.py").write_text(quick, "utf-8")
    monkeypatch.setattr(launch, "KEEPER", tmp_path / "keeper.py")
    monkeypatch.setenv("KEEPER", str(tmp_path / "keeper.py"))


class Marked:
    """An environment whose processes are known by a mark in it."""

    def __init__(self, **more: str) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, "TREE": TREE, "MARK": self.mark, "PYTHONPATH": str(ROOT), **more}

    def alive(self) -> set[int]:
        return {pid for pid in descendants_of_init() if f"MARK={self.mark}".encode() in environ(pid)}

    def become(self, count: int, seconds: float = 20.0) -> bool:
        return eventually(lambda: len(self.alive()) == count, seconds)

    def end(self) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


def descendants_of_init() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def marked() -> Iterator[Marked]:
    found = Marked()
    yield found
    found.end()


def tree(depth: int) -> list[str]:
    return [sys.executable, "-c", TREE, str(depth)]


def test_when_the_block_ends_so_does_every_process(marked: Marked, tmp_path: Path) -> None:
    """The keeper asks first and kills what does not listen; it is one of the processes that carry the mark."""
    with (tmp_path / "log").open("wb") as log, kept(tree(2), marked.environment, log):
        assert marked.become(WHOLE + 1)

    assert set() == marked.alive()


def test_when_the_block_fails_so_does_every_process(marked: Marked, tmp_path: Path) -> None:
    def fail() -> None:
        with (tmp_path / "log").open("wb") as log, kept(tree(2), marked.environment, log):
            assert marked.become(WHOLE + 1)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert set() == marked.alive()


def test_a_command_that_ends_leaves_no_process(tmp_path: Path) -> None:
    """Its exit status is kept."""
    marked = Marked(orphan="yes")
    with (tmp_path / "log").open("wb") as log, kept(tree(2), marked.environment, log) as process:
        assert 7 == process.wait(30)
        assert set() == marked.alive()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_when_the_owner_is_killed_nothing_remains(number: signal.Signals, marked: Marked) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], env=marked.environment, stderr=subprocess.DEVNULL)
    try:
        assert marked.become(WHOLE + 2)
        owner.send_signal(number)
        owner.wait(30)

        assert marked.become(0)
    finally:
        owner.kill()


def test_when_the_keeper_is_killed_its_command_goes_with_it(marked: Marked, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, kept(tree(0), marked.environment, log) as process:
        assert marked.become(2)
        process.kill()

        assert marked.become(0)


def test_descendants_are_those_below_and_alive() -> None:
    with subprocess.Popen(tree(0), env={**os.environ, "TREE": TREE}) as child:
        assert child.pid in descendants(os.getpid())
        child.kill()
        assert eventually(lambda: child.pid not in descendants(os.getpid()))


# A server


def server(folder: Path, name: Name, before: str = "") -> Start:
    """A start whose interpreter is a script that stands in for the engine."""
    script = folder / "python"
    script.write_text(SERVER.format(python=sys.executable, root=str(ROOT), name=name, before=before))
    script.chmod(0o755)
    return Start(name, str(script), folder)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_server_is_there_once_it_answers_and_gone_after(name: Literal["sglang", "vllm"], tmp_path: Path) -> None:
    others = set(descendants(os.getpid()))  # of other tests, such as the server of forks
    with running(server(tmp_path, name, "time.sleep(1)")) as engine:
        assert (name, "float32") == (engine.facts.engine, engine.facts.dtype)
        assert engine.seconds > 1
        mine = set(descendants(os.getpid())) - others
        assert engine.keeper in mine

    assert set() == mine & set(descendants_of_init())


def test_an_engine_that_ends_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"(?s)ended before it answered.*loading \| no such weights"):
        start(server(tmp_path, "sglang", "sys.exit('no such weights')"))


def test_an_engine_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"(?s)said nothing for 2 s before it answered.*loading"):
        start(server(tmp_path, "vllm", "time.sleep(120)"), longest=2.0)
    assert not [pid for pid in descendants(os.getpid()) if str(tmp_path).encode() in cmdline(pid)]


def start(wanted: Start, longest: float = 60.0) -> None:
    with running(wanted, longest=longest):
        pass


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_decides_numbers_is_said(name: Literal["sglang", "vllm"], device: Literal["cpu", "cuda"]) -> None:
    command = Start(name, "python", Path("/m"), device, more=("--seed", "3")).command(8123)

    assert ["--seed", "3"] == command[-2:]
    assert {"127.0.0.1", "8123", "--dtype"} <= set(command)
    assert {"cpu": "float32", "cuda": "auto"}[device] == command[command.index("--dtype") + 1]
    assert (device == "cpu") == ("--attention-backend" in command)
    assert {"sglang": "--disable-radix-cache", "vllm": "--no-enable-prefix-caching"}[name] in command
