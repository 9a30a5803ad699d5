"""A probe rehearsed against the emulator, which knows the answers.

Guarantees: nothing of the user's own state is read or touched, but for the key in the environment, which a rehearsal of
a paid route needs as the route does. Each answer is ids of the format's own layout, thinking where the probe thinks,
with calls where it calls, and longer than its limit where it is to be cut. Reasoning is of many lengths and begins and
ends in white space, as what a route does to that is to be learned. The server is imported only where one is opened.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from harness.emulator.answers import Answerer, PoolAnswerer
from harness.fixtures.runs import MODEL, World, make_world
from pipeline.base.money import pico
from pipeline.base.paths import ROOT
from pipeline.formats.format import Format, Parts
from pipeline.formats.kimi.tokens import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.formats.registry import open_format
from pipeline.gate.attestation import Scope
from pipeline.gate.digests import tree_digests
from pipeline.gate.gate import PROBES, Job, Kind, Permit
from pipeline.generation.outcome import refusing_errors
from pipeline.generation.plan import Plan
from pipeline.generation.probe.exchange_file import FILE
from pipeline.generation.probe.probe import Findings, run_probe
from pipeline.generation.probe.probes import Probe, ProbePlan, read_probes
from pipeline.records import Ids, Refusal, Route, Sampling, ToolMode

if TYPE_CHECKING:
    from harness.emulator.server import EmulatorInProcess, Terms


FMT = open_format("tiny-kimi")
STEP = " I look at it once more, and it holds."
COMMITTED = read_probes(ROOT / PROBES)
EMULATED = Route("emulator", MODEL, "siliconflow", stream=False)
PAID = replace(EMULATED, api="openrouter")
"""A paid route, as far as the program knows; its base URL is the emulator's."""


@dataclass(frozen=True, slots=True)
class Shop:
    """A world, its emulator, and what a probe printed."""

    world: World
    trial: EmulatorInProcess
    said: list[str]

    def wanted(self, *, route: Route = EMULATED, budget: str = "1", few: bool = False, repeats: int = 3) -> ProbePlan:
        """Return the plan of a probe."""
        plan = Plan(
            prompts=ROOT / PROBES,
            out=self.world.out,
            route=route,
            sampling=Sampling(max_tokens=1),
            tool_mode=ToolMode.NONE,
            fmt=FMT,
            budget_pico=pico(budget),
            base_url=self.trial.url,
            concurrency=4,
        )
        return ProbePlan(plan, COMMITTED.sha256, COMMITTED.chosen(few=few), repeats)

    def permit(self, wanted: ProbePlan, **changes: object) -> Permit:
        """Return a permit for this probe.

        `changes` go into its job.
        """
        job = Job(Kind.PROBE, wanted.plan.route, prompts_sha256=COMMITTED.sha256)
        job = replace(job, **changes)  # type: ignore[arg-type]  # Job's own fields
        digests, until = tree_digests(self.world.root), datetime.now(UTC) + timedelta(hours=1)
        return Permit(job, Scope.DEV, Decimal(1), until, "ab" * 32, digests)

    def probe(self, wanted: ProbePlan, permit: Permit | None = None) -> Findings:
        """Run one session.

        Raises StopError.
        """
        permit = permit or self.permit(wanted)
        asking = run_probe(permit, wanted, say=self.said.append, root=self.world.root, ledger=self.world.ledger)
        return asyncio.run(asking)

    @property
    def exchanges(self) -> Path:
        return self.world.out / FILE


@contextmanager
def opened(folder: Path, answerer: Answerer | None = None, terms: Terms | None = None) -> Iterator[Shop]:
    """Open a shop in `folder`, over a real socket."""
    from harness.emulator.server import emulator_in_process

    world = make_world(folder, FMT)
    for name in (PROBES, "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, world.root / name)
    keys = patch.dict(os.environ, DRAFTER_GATE_KEYS=str(folder / "keys"))  # the day's spend lies there
    served = emulator_in_process(FMT, answerer or known_pool(COMMITTED.probes, FMT), world.oracle, terms)
    with keys, served as trial:
        yield Shop(replace(world, url=trial.url), trial, [])


def known_pool(probes: Iterable[Probe], fmt: Format) -> PoolAnswerer:
    """Return a pool that answers each probe's prompt.

    Probes that the format does not render have no answer.
    """
    answers: dict[Ids, Ids] = {}
    for number, probe in enumerate(probes):
        prompt = refusing_errors(lambda one=probe: fmt.render(one.prompt))  # type: ignore[misc]  # bound at once
        if not isinstance(prompt, Refusal):
            answers[prompt] = known_answer(probe, fmt, number)
    return PoolAnswerer(by_prompt=answers)


def known_answer(probe: Probe, fmt: Format, number: int = 0) -> Ids:
    """Return the ids of an answer that is as known.

    `number` decides how long it thinks.
    """
    thinking = probe.prompt.thinking
    reasoning = f" Let me see.{STEP * (number % 7)}\n" if thinking else None
    body = tuple(known_body(probe, fmt))
    return fmt.assemble(Parts(reasoning, think_closed=thinking, body=body, ended=True)).ids


def known_body(probe: Probe, fmt: Format) -> Iterator[str | int]:
    """Yield content and calls as the probe expects them."""
    known, markers = probe.known, fmt.tool_markers()
    if known.content is not None:
        yield known.content
    elif known.cut:
        yield "one, two, three, " * probe.max_tokens
    elif known.contains:
        yield f"\n\n{', '.join(known.contains)}.\n"
    if known.calls:
        yield markers[SECTION_BEGIN]
        for position, name in enumerate(known.calls):
            arguments = json.dumps({"text": f"{probe.id} é", "city": "Oslo"}, ensure_ascii=False)
            called = (markers[CALL_BEGIN], f"functions.{name}:{position}", markers[ARGUMENT_BEGIN], arguments)
            yield from (*called, markers[CALL_END])
        yield markers[SECTION_END]
