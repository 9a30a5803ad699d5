"""The two sides of the load measure, on one peer.

A bare loop over httpx2, and a whole run of this program. Guarantees: each runs in a forked process of its own and
reports what it spent there, start and end included.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx2

from harness.fixtures.canned_peer import PROVIDER
from harness.fixtures.forks import told_by
from harness.fixtures.runs import MODEL, World, byte_format, make_world, whole_run
from pipeline.base.prompts import prompt_of
from pipeline.generation.engines.openrouter import encode_body
from pipeline.generation.engines.request import request_body
from pipeline.generation.plan import Plan
from pipeline.generation.summary import Tally
from pipeline.records import Json, Prompt, Route, Sampling, ToolMode

FIRST = 1_000_000
"""Row numbers have the same number of digits, so that one answer's prompt count fits all."""
ROUTE = Route("emulator", MODEL, PROVIDER, stream=True)
PLENTY = 10**16
MOST_TOKENS = 4096
LOOK_EVERY = 50


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests, failures, and seconds by clock and processor."""

    requests: int
    wall: float
    cpu: float
    failed: int = 0


def prompt_text(number: int) -> str:
    return f'{{"id":"row-{FIRST + number}","messages":[{{"role":"user","content":"What is {FIRST + number} + 1?"}}]}}'


def a_prompt(number: int = 0) -> Prompt:
    return prompt_of(json.loads(prompt_text(number)))


def load_world(folder: Path, url: str, lines: int) -> World:
    """Return a world on the peer with `lines` prompts."""
    folder.mkdir(parents=True)
    (vocabulary := folder / "tokenizer").mkdir()
    world = make_world(folder, byte_format(vocabulary))
    with (folder / "prompts.jsonl").open("w") as file:
        file.writelines(prompt_text(number) + "\n" for number in range(lines))
    return World(world.folder, world.fmt, url)


def plan_of(world: World, in_flight: int, limit: int | None = None) -> Plan:
    sampling = Sampling(max_tokens=MOST_TOKENS)
    return world.plan(route=ROUTE, concurrency=in_flight, budget_pico=PLENTY, sampling=sampling, limit=limit)


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory(world: World, in_flight: int, limit: int, marks: Sequence[int]) -> dict[int, int]:
    """Return the most bytes held up to each mark."""

    def work() -> Json:
        most: dict[str, Json] = {}
        held = 0

        def look(tally: Tally) -> None:
            nonlocal held
            if tally.asked % LOOK_EVERY == 0:
                held = max(held, resident())
            if tally.asked in marks:
                most[str(tally.asked)] = held

        whole_run(world, plan_of(world, in_flight, limit), look)
        return most

    found = told_by(work, silent=True)
    return {int(mark): int(str(held)) for mark, held in found.items()} if isinstance(found, dict) else {}


def ours(world: World, in_flight: int) -> Spent:
    """Run over all of the world's prompts."""

    def work() -> Json:
        began, used = time.perf_counter(), time.process_time()
        summary = whole_run(world, plan_of(world, in_flight))
        rows = summary.rows
        failed = rows["in_file"] - rows["accepted"]
        return [rows["in_file"], time.perf_counter() - began, time.process_time() - used, failed]

    return _spent(told_by(work, silent=True))


def bare(url: str, requests: int, in_flight: int, world: World) -> Spent:
    """Read every byte of every answer, and do nothing else.

    The pool has the same size, the requests have the same bodies.
    """

    def work() -> Json:
        began, used = time.perf_counter(), time.process_time()
        request = request_body(a_prompt(), ROUTE, Sampling(max_tokens=MOST_TOKENS), ToolMode.RAW, world.fmt, "0" * 32)
        one = encode_body(request)  # making bodies is none of the bare loop's work
        failed = asyncio.run(_read_all(url, (one for _ in range(requests)), in_flight))
        return [requests, time.perf_counter() - began, time.process_time() - used, failed]

    return _spent(told_by(work))


async def _read_all(url: str, bodies: Iterator[bytes], in_flight: int) -> int:
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    limits = httpx2.Limits(max_connections=1024, max_keepalive_connections=1024)
    async with httpx2.AsyncClient(timeout=60.0, limits=limits, trust_env=False) as client:

        async def work() -> int:
            lost = 0
            for body in bodies:
                try:
                    async with client.stream(
                        "POST", f"{url}/chat/completions", content=body, headers=headers
                    ) as answer:
                        async for _ in answer.aiter_bytes():
                            pass
                except httpx2.HTTPError:
                    lost += 1
            return lost

        return sum(await asyncio.gather(*(work() for _ in range(in_flight))))


def _spent(figures: Json) -> Spent:
    requests, wall, cpu, failed = cast("list[float]", figures)
    return Spent(int(requests), wall, cpu, int(failed))
