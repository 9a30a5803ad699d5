"""Run against a bad wire, killed at random and resumed.

`python -m harness chaos`

Guarantees: each run is a series of client processes, some ended by `kill -9`, against an emulator in a process of its
own; then both sides' books are compared. Prints one line a run and the sums. Exit 1 for an answer lost or paid twice, a
wrong row, money that does not add up, a lost ledger that was not noticed, or a moment above the budget.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from harness.emulator.catalog import cost_usd
from harness.fixtures.forks import ChildError, told_by
from harness.fixtures.runs import MODEL, World, byte_format, make_world, prompt_line
from harness.measures.chaos.checks import ChaosFinding, check
from harness.measures.chaos.ledger_loss import keep_a_copy, lose_ledger
from harness.measures.chaos.server import bad_wire
from harness.measures.chaos.session import Due, Ended, reconciled, session, when_asked, when_writing
from harness.views.view import PROFILES
from pipeline.base.money import pico, usd_text
from pipeline.base.screen import show
from pipeline.generation.breaker import Sign
from pipeline.generation.ledger import listing
from pipeline.generation.outcome import BUDGET_SPENT
from pipeline.generation.plan import BreakerPolicy, RetryPolicy
from pipeline.records import Json, Route

RUNS, PROMPTS = 200, 500
HASTY = RetryPolicy(attempts=5, first=0.002, longest=0.01)
MOST_SESSIONS = 150
PROVIDERS = ("chutes", "siliconflow")
WORST_TOKENS = (256, 256)
"""Of a prompt and of an answer, about."""
GROWTH = 1.5
MOST_EXAMPLES = 20
LOST = 0.5
"""How often a kill takes the ledger with it."""


@dataclass(slots=True)
class Rehearsal:
    """One run through chaos: its draw and its findings."""

    world: World
    draw: Random
    route: Route
    in_flight: int
    budget: int
    kills: int
    found: ChaosFinding = field(default_factory=ChaosFinding)

    def go(self) -> None:
        """Run sessions until every row is settled.

        A row is settled when it is there or of unknown fate. The budget is checked after each session.
        """
        for _ in range(MOST_SESSIONS):
            plan = self.world.plan(
                route=self.route,
                concurrency=self.in_flight,
                budget_pico=self.budget,
                patience=HASTY,
                watch=BreakerPolicy(accepted=frozenset(Sign)),
            )
            ended = session(self.world, plan, self._due())
            self._look(ended)
            if ended.how == "killed" and self.draw.random() < LOST:
                lose_ledger(self.world, self.draw, lambda going=plan: session(self.world, going, None), self.found)  # type: ignore[misc]  # bound at once
                keep_a_copy(self.world)
            if ended.how == "crashed" or ended.is_over:
                return
            if ended.code == BUDGET_SPENT:
                self.budget = round(self.budget * GROWTH)
        self.found.wrong("no end", f"after {MOST_SESSIONS} sessions: {ended}")

    def _due(self) -> Due | None:
        """Draw when the client is killed; None: it is not.

        At its start, while it asks, or while it writes.
        """
        if not self.kills or self.draw.random() < 0.2:  # noqa: PLR2004 - some sessions are left alone in between
            return None
        self.kills -= 1
        size = self.draw.choice([0, self.draw.randrange(20_000), self.draw.randrange(150_000), None])
        return when_writing(self.world) if size is None else when_asked(self.world, size)

    def _look(self, ended: Ended) -> None:
        self.found.counts[f"sessions {ended.how}"] += 1
        self.found.counts["sessions out of budget"] += ended.code == BUDGET_SPENT
        if ended.how == "crashed":
            self.found.wrong("crash", ended.message)
        # The ledger is this run's alone; unsettled requests stand there at their worst case.
        ledger = sum(line.pico for line in listing(self.world.ledger) if line.state != "failed_free")
        for what, spent in (("in the ledger", ledger), ("billed", pico(self.world.billed()))):
            if spent > self.budget:
                self.found.wrong("over budget", f"${usd_text(spent)} {what}, of ${usd_text(self.budget)}")


def drawn_run(world: World, draw: Random) -> Rehearsal:
    """Draw a run: route, budget, and number of kills."""
    route = Route("emulator", MODEL, draw.choice(PROVIDERS), stream=draw.random() < 0.7)  # noqa: PLR2004 - mostly
    in_flight = draw.choice([8, 16, 32, 64])
    worst = pico(cost_usd(PROFILES[route.provider], *WORST_TOKENS))
    budget = worst * draw.choice([in_flight // 2, in_flight * 2, 10_000])
    return Rehearsal(world, draw, route, in_flight, budget, kills=draw.randrange(1, 7))


def rehearse(folder: Path, seed: int, prompts: int) -> tuple[ChaosFinding, str]:
    """Carry out one run and compare the books.

    Returns the findings, and in words what was drawn.
    """
    (tokenizer := folder / "tokenizer").mkdir()
    world = make_world(folder, byte_format(tokenizer))
    world.write_prompts(*(prompt_line(number) for number in range(prompts)))
    run, log = drawn_run(world, Random(seed)), folder / "faults.jsonl"
    with bad_wire(world.fmt, world.oracle, log, seed) as url:
        run.world = replace(world, url=url)
        run.go()
        if not run.found.violations:
            reconciled(world.ledger, url)
            run.go()
    run.found.add(check(world, log))
    way = f"{run.route.name} {'stream' if run.route.stream else 'json'}, {run.in_flight} in flight"
    return run.found, way


def isolated(seed: int, prompts: int) -> tuple[ChaosFinding, str]:
    """Rehearse in a process of its own.

    Reading shards starts threads, and a fork loses them.
    """
    with tempfile.TemporaryDirectory() as folder:

        def work() -> Json:
            found, way = rehearse(Path(folder), seed, prompts)
            sums: dict[str, Any] = {"wrong": found.violations, "examples": found.examples, "counts": found.counts}
            return sums | {"way": way}

        try:
            result: Any = told_by(work)
        except ChildError as error:
            return ChaosFinding(
                Counter({"crash of the rehearsal": 1}), [f"{error}; its traceback stands above"]
            ), "no run"
    return ChaosFinding(Counter(result["wrong"]), result["examples"], Counter(result["counts"])), result["way"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, sum up; 1 where anything is violated."""
    parser = argparse.ArgumentParser(prog="python -m harness chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"default {RUNS}")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"prompts a run (default {PROMPTS})")
    parser.add_argument("--seed", type=int, default=0, help="the first run's; the others count on from it")
    parser.add_argument("--seconds", type=float, help="begin no run after so many seconds")
    options = parser.parse_args(arguments)
    total, runs, begin = ChaosFinding(), 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.runs):
        if options.seconds is not None and time.monotonic() - begin > options.seconds:
            break
        start = time.monotonic()
        found, way = isolated(seed, options.prompts)
        total.add(found)
        runs += 1
        show(f"seed {seed}: {way}, {time.monotonic() - start:.1f} s: {_said(found.counts)}")
        for example in found.examples[:MOST_EXAMPLES]:
            show(f"  {example}")
    show(f"{runs} runs of {options.prompts} prompts: {_said(total.counts)}")
    show(f"violations: {_said(total.violations) or 'none'}")
    return 1 if total.violations else 0


def _said(counts: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
