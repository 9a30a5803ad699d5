"""Kill an engine's server, client or both, then resume.

`python -m harness engines kills ENGINE --python PYTHON --model DIR`

Guarantees: a kill is SIGKILL, sent while rows are in flight. Afterwards the same command runs until every prompt has a
row. Exit 1 where a row is lost or there twice, or where a process of the engine is left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from harness.engines.__main__ import add_engine, start_of
from harness.engines.keeper import descendants
from harness.engines.launch import RunningEngine, running
from harness.engines.settings import Start
from harness.fixtures.runs import HASTY, MODEL, World, make_world, prompt_line
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show_json
from pipeline.formats.registry import open_format
from pipeline.generation.engines.output import EngineError
from pipeline.generation.outcome import StopError
from pipeline.records import Route, Sampling

Victim = Literal["client", "server", "both"]
VICTIMS: Final[tuple[Victim, ...]] = get_args(Victim)
TRIALS: Final = 20
PROMPTS: Final = 48
AT_ONCE: Final = 8
LONGEST: Final = 300.0
LOOK_SECONDS: Final = 0.01
ANSWERED: Final = "SELECT row FROM requests JOIN answers USING (identity, attempt) WHERE status = 200"


@dataclass(slots=True)
class KillFinding:
    """The results of all trials of one victim.

    `double`: rows there twice, or answered twice. `asked_again`: requests beyond one a row, whose answer a kill took or
    whose server was gone. `early`: kills after the run was already over.
    """

    trials: int = 0
    lost: int = 0
    double: int = 0
    left: int = 0
    early: int = 0
    asked_again: int = 0
    rows_before: list[int] = field(default_factory=list)


class Engine:
    """A server, started where there is none."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self._stack = ExitStack()
        self._running: RunningEngine | None = None

    def url(self) -> str:
        """Return where it listens; start it first if needed."""
        if self._running is None:
            self._running = self._stack.enter_context(running(self.start))
        return self._running.url

    def kill(self) -> int:
        """SIGKILL the engine's process; how many processes it left."""
        if self._running is None:
            return 0
        family = descendants(self._running.keeper)
        os.kill(family[0], signal.SIGKILL)
        self.close()
        return len(set(family) & set(descendants(1)))

    def close(self) -> None:
        self._stack.close()
        self._stack, self._running = ExitStack(), None


def trial(engine: Engine, victim: Victim, draw: random.Random, found: KillFinding) -> None:
    """Kill one run once, and resume it to its end."""
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        world = world_in(Path(name))
        at = draw.randrange(1, PROMPTS - AT_ONCE)
        client = session(world, engine)
        when = time.monotonic() + LONGEST
        while asked(world) < at and client.poll() is None and time.monotonic() < when:
            time.sleep(LOOK_SECONDS)
        found.early += client.poll() is not None
        if victim != "server":
            client.kill()
        if victim != "client":
            found.left += engine.kill()
        client.wait(LONGEST)
        found.rows_before.append(len(world.rows()))
        if session(world, engine).wait(LONGEST) != 0:
            raise EngineError(f"the run did not go on after its {victim} was killed")
        found.trials += 1
        count(world, found)


def count(world: World, found: KillFinding) -> None:
    """Count rows lost, rows there or answered twice, repeated requests."""
    held = Counter(str(row["id"]) for row in [*world.rows(), *world.quarantine()])
    found.lost += sum(f"row-{number}" not in held for number in range(PROMPTS))
    with closing(sqlite3.connect(world.ledger)) as ledger:
        asked = Counter(row for (row,) in ledger.execute("SELECT row FROM requests"))
        answered = Counter(row for (row,) in ledger.execute(ANSWERED))
    found.double += sum(max(held[row], answered[row]) > 1 for row in asked)
    found.asked_again += asked.total() - PROMPTS


def world_in(folder: Path) -> World:
    """Return a folder for runs with the tiny target's prompts."""
    world = make_world(folder, open_format("tiny-kimi"))
    world.write_prompts(*(prompt_line(number) for number in range(PROMPTS)))
    return world


def session(world: World, engine: Engine) -> subprocess.Popen[bytes]:
    """Start one client session in a process of its own."""
    command = [sys.executable, "-m", "harness", "engines", "kills", "--session", str(world.folder)]
    return subprocess.Popen([*command, engine.start.name, engine.url()], cwd=ROOT)


def asked(world: World) -> int:
    """Return the rows answered so far in this folder."""
    log = world.out / "events.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return sum('"row"' in line for line in lines)


def client(folder: str, name: str, url: str) -> int:
    """Run the client; 0 where every prompt has a row."""
    world = World(Path(folder), open_format("tiny-kimi"), url)
    route = Route("sglang" if name == "sglang" else "vllm", MODEL)
    plan = world.plan(route=route, concurrency=AT_ONCE, sampling=Sampling(max_tokens=96), patience=HASTY)
    try:
        return world.run(plan).code
    except StopError as error:
        say(str(error))
        return error.code


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 for a violation, 2 where the engine failed.

    A violation is a lost or double row, or a process left.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--session"]:
        return client(*given[1:])
    parser = argparse.ArgumentParser(prog="python -m harness engines kills", description=(__doc__ or "").split("\n")[0])
    add_engine(parser)
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"of each victim (default {TRIALS})")
    parser.add_argument("--seed", type=int, default=0)
    options, more = parser.parse_known_args(given)
    engine, draw = Engine(start_of(options, more)), random.Random(options.seed)
    found = {victim: KillFinding() for victim in VICTIMS}
    try:
        for _ in range(options.trials):
            for victim in VICTIMS:
                trial(engine, victim, draw, found[victim])
    except EngineError as error:
        say(f"error: {error}")
        return 2
    finally:
        engine.close()
    show_json({victim: asdict(each) for victim, each in found.items()})
    return int(any(each.lost or each.double or each.left for each in found.values()))
