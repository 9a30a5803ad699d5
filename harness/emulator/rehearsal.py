"""A whole run in a folder of its own: a tree with fingerprints, a prompts file, an emulator, the answers' true ids.

For tests of what stops a run. Guarantees: nothing of the user's own state is read or touched. Started as a module it is
one run in a process that may be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq

from harness.emulator.answers import Answerer, Ask, PoolAnswerer, Sampled
from harness.emulator.faults import Faults
from harness.emulator.oracle import OracleEntry, read_oracle
from harness.roundtrips import true_fingerprint
from harness.tiny_target.vocabulary import write_vocabulary
from harness.views import PROFILES
from pipeline.asking import StopError
from pipeline.attested import Scope
from pipeline.digests import SUBJECTS, tree_digests
from pipeline.formats.parts import Format
from pipeline.formats.registry import load_format
from pipeline.gate import Job, Kind, Permit
from pipeline.generate import run_generation
from pipeline.hosted import sample_id
from pipeline.money import pico
from pipeline.plan import Plan
from pipeline.prompts import prompt_of
from pipeline.records import Json, Route, Sampling, ToolMode
from pipeline.routes import file_name
from pipeline.state import ROOT
from pipeline.summary import Summary, Tally
from pipeline.tokenizers import load_tokenizer

MODEL = "drafter-gate/tiny-kimi"
ROWS = 40


@dataclass
class SlowAnswerer:
    """The pool, a little later; what it saw in flight, and the signal to send when so many have been asked.

    `again_after` sends it once more after so many seconds.
    """

    pool: PoolAnswerer
    seconds: float = 0.0
    now: int = 0
    most: int = 0
    asked: int = 0
    at: dict[int, signal.Signals] = field(default_factory=dict)
    again_after: float = 0.0

    async def answer(self, ask: Ask) -> Sampled:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        if self.asked in self.at:
            os.kill(os.getpid(), self.at[self.asked])
            if self.again_after:
                asyncio.get_running_loop().call_later(self.again_after, os.kill, os.getpid(), self.at[self.asked])
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return await self.pool.answer(ask)

    async def close(self) -> None:
        await self.pool.close()


@dataclass
class World:
    """A tree with fingerprints, a prompts file, an emulator's address and what it billed."""

    folder: Path
    fmt: Format
    url: str = ""

    @property
    def root(self) -> Path:
        """The tree, as far as a run looks at it."""
        return self.folder / "root"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def oracle(self) -> Path:
        return self.folder / "oracle.jsonl"

    @property
    def ledger(self) -> Path:
        return self.folder / "state" / "ledger.sqlite"

    def plan(self, **changes: object) -> Plan:
        plan = Plan(
            prompts=self.folder / "prompts.jsonl",
            out=self.out,
            route=Route("emulator", MODEL, "chutes", stream=True),
            sampling=Sampling(),
            tool_mode=ToolMode.RAW,
            fmt=self.fmt,
            budget_pico=pico(1),
            base_url=self.url,
        )
        return replace(plan, **changes)  # type: ignore[arg-type]  # Plan's own fields

    def run(self, plan: Plan | None = None, *, expires: timedelta = timedelta(hours=1)) -> Summary:
        """One session of a run, in this process, under a permit made here."""
        job = Job(Kind.GENERATE)
        permit = Permit(job, Scope.DEV, Decimal(1000), datetime.now(UTC) + expires, "ab" * 32, tree_digests(self.root))
        work = run_generation(permit, plan or self.plan(), progress=silent, root=self.root, ledger=self.ledger)
        return asyncio.run(work)

    def start(self, *, file_limit: int = 0) -> subprocess.Popen[str]:
        """The same in a process of its own, which may be killed; no file of it grows past `file_limit` bytes."""
        place = (str(self.folder), self.url, str(self.fmt.tokenizer.directory), str(file_limit))
        command = [sys.executable, "-m", "harness.emulator.rehearsal", *place]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def asked(self) -> Counter[str]:
        """How often the emulator answered each row, by the sample id that stands for it."""
        return Counter(str(entry.sample_id) for entry in self.entries())

    def entries(self) -> list[OracleEntry]:
        """The oracle log so far."""
        return list(read_oracle(self.oracle))

    def billed(self) -> Decimal:
        return sum((Decimal(entry.cost) for entry in self.entries()), Decimal(0))

    def rows(self) -> list[dict[str, Json]]:
        paths = sorted(self.out.glob("shard-*.parquet"))
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def quarantine(self) -> list[dict[str, Json]]:
        path = self.out / "quarantine.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def write_prompts(self, *lines: str) -> None:
        (self.folder / "prompts.jsonl").write_text("".join(line + "\n" for line in lines))

    def false_rows(self) -> list[str]:
        """Accepted rows whose ids are not those that the emulator's model really emitted."""
        truth = {entry.sample_id: (list(entry.prompt_ids), list(entry.output_ids)) for entry in self.entries()}
        lines = (self.folder / "prompts.jsonl").read_text().splitlines()
        keys = {prompt.id: sample_id(prompt) for prompt in map(prompt_of, map(json.loads, lines))}
        found = {str(row["id"]): (row["prompt_ids"], row["output_ids"]) for row in self.rows()}
        return [name for name, ids in found.items() if truth[keys[name]] != ids]


def silent(_: Tally) -> None:
    """Show nothing."""


def prompt_line(number: int) -> str:
    return json.dumps({"id": f"row-{number}", "messages": [{"role": "user", "content": f"What is {number} + 1?"}]})


def sample_ids() -> set[str]:
    return {sample_id(prompt_of(json.loads(prompt_line(number)))) for number in range(ROWS)}


def pool(fmt: Format, count: int = 7) -> PoolAnswerer:
    encode = fmt.tokenizer.encode
    answers = [
        (*encode(f" Think {'more ' * number}."), fmt.think_close_id, *encode(f" It is {number}."), fmt.end_id)
        for number in range(count)
    ]
    return PoolAnswerer(common=answers)


@contextmanager
def emulating(world: World, answerer: Answerer, faults: Faults | None = None) -> Iterator[World]:
    """The world with an emulator in it, over a real socket."""
    from harness.emulator.trial import Terms
    from harness.emulator.trial import emulating as trial

    with trial(world.fmt, answerer, world.oracle, Terms(faults=faults or Faults())) as found:
        yield replace(world, url=found.url)


def byte_format(folder: Path) -> Format:
    """Kimi's layout on a vocabulary of single bytes: every text has one tokenisation."""
    write_vocabulary({bytes([value]): value for value in range(256)}, folder)
    return load_format("kimi-k2.5", load_tokenizer(folder))


def make_world(folder: Path, fmt: Format) -> World:
    """A tree, its fingerprints as a perfect measurement gives them, and a prompts file."""
    world = World(folder, fmt)
    world.root.mkdir()
    for subject in SUBJECTS:
        path = world.root / subject
        path.mkdir() if subject.endswith("/") else path.write_text("")
    prints = world.root / "goldens" / "fingerprints"
    prints.mkdir()
    for profile in PROFILES.values():
        for stream in (True, False):
            found = true_fingerprint(profile, stream=stream)
            route: dict[str, Json] = {"provider": found.provider, "model": found.model, "stream": stream}
            lines = [
                route | {"trait": str(name), "value": trait.value, "n": trait.n, "proven": trait.proven}
                for name, trait in found.traits.items()
            ]
            (prints / file_name(found)).write_text("".join(json.dumps(line) + "\n" for line in lines))
    world.write_prompts(*(prompt_line(number) for number in range(ROWS)))
    return world


def main(folder: str, url: str, tokenizer: str, file_limit: str) -> None:
    """One session of a run; its exit code and message on stdout."""
    if int(file_limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_limit), int(file_limit)))
    world = World(Path(folder), load_format("kimi-k2.5", load_tokenizer(Path(tokenizer))), url)
    try:
        summary = world.run(world.plan(concurrency=4))
        said = f"{summary.code} {summary.message}"
    except StopError as error:
        said = f"{error.code} {error}"
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
