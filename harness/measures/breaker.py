"""Measure what a run spends after each kind of trip.

`python -m harness breaker`

Guarantees: real runs over a real loopback emulator that turns bad at one answer. Counted is what the emulator answered
after the first bad answer, received or not. Money is given as rows, and as a share of a large run.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.emulator.answers import Ask, PoolAnswerer, Sampled
from harness.emulator.service import Faults
from harness.fixtures.runs import World, byte_format, emulating, make_world, pool, prompt_line
from pipeline.base.screen import show
from pipeline.formats.format import Format
from pipeline.generation.breaker import CANARIES, Sign
from pipeline.generation.summary import Summary
from pipeline.records import Ids, Sampling

LARGE_RUN = 83_000
IN_FLIGHT = 64
ROWS = 600
GOOD = 200

SIGNS = tuple(sign for sign in Sign if sign is not Sign.BUDGET)
"""A budget that will not hold is nobody's bad answer."""

Change = Callable[[bytes], bytes]


def _more(name: bytes, factor: int) -> Change:
    def multiplied(found: re.Match[bytes]) -> bytes:
        value = json.loads(found[1]) * factor
        return b'"%s":%s' % (name, json.dumps(value if isinstance(value, float) else value + 1).encode())

    return lambda body: re.sub(rb'"%s":([0-9.e-]+)' % name, multiplied, body)


CHANGES: Mapping[Sign, Change] = {
    Sign.REFUSED: _more(b"prompt_tokens", 2),
    Sign.LENGTH_CUT: lambda body: body.replace(b'finish_reason":"stop"', b'finish_reason":"length"'),
    Sign.WRONG_PROVIDER: lambda body: body.replace(b'"provider":"Chutes"', b'"provider":"Another"'),
    Sign.ERROR: lambda body: body[: len(body) // 2] if b"data:" in body else body,
    Sign.COST: _more(b"cost", 10),
    Sign.OVERCHARGED: _more(b"cost", 10_000),
}
"""What the wire shows once the provider turns bad; the others are bad answers of the model."""


@dataclass(slots=True)
class Turning:
    """Good answers, then bad ones after `after` of them."""

    good: PoolAnswerer
    bad: Ids | None
    after: int
    asked: int = 0

    async def answer(self, ask: Ask) -> Sampled:
        self.asked += 1
        if self.asked > self.after and self.bad is not None:
            return Sampled(self.bad)
        return await self.good.answer(ask)

    async def close(self) -> None:
        await self.good.close()


def bad_ids(sign: Sign, fmt: Format) -> Ids | None:
    """Return the model's bad answer, None for wire faults."""
    encode, closed = fmt.tokenizer.encode, (fmt.think_close_id, fmt.end_id)
    if sign is Sign.EMPTY:
        return closed
    if sign is Sign.LOOP:
        return (*encode(" So " + "on and " * 60), fmt.think_close_id, *encode(" Done."), fmt.end_id)
    return None


def faults(sign: Sign, turning: Turning) -> Faults:
    """Return the wire that turns bad with the answers."""
    change = CHANGES.get(sign)

    async def body(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            yield change(part) if change is not None and turning.asked > turning.after else part

    return Faults(body=body)


@dataclass(frozen=True, slots=True)
class Measured:
    """How one run that turned bad ended.

    `after_first`: the answers that the emulator gave from the first bad one on.
    """

    sign: Sign
    summary: Summary
    after_first: int
    tripped: str | None


def measure(sign: Sign, folder: Path, fmt: Format, *, good: int = GOOD, rows: int = ROWS) -> Measured:
    """Run `rows` prompts; the first `good` are answered well."""
    world: World = make_world(folder, fmt)
    world.write_prompts(*(prompt_line(number) for number in range(rows)))
    turning = Turning(pool(fmt), bad_ids(sign, fmt), good)
    with emulating(world, turning, faults(sign, turning)) as live:
        summary = live.run(live.plan(concurrency=IN_FLIGHT, budget_pico=10**15, sampling=Sampling(max_tokens=1024)))
    paused = summary.paused or {}
    return Measured(sign, summary, turning.asked - good, str(paused.get("sign")) if paused else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every kind of trip; 1 where none tripped.

    Each turns bad at the first row, and in the middle of a run.
    """
    parser = argparse.ArgumentParser(prog="python -m harness breaker", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of a run (default {ROWS})")
    options = parser.parse_args(arguments)
    most = CANARIES + IN_FLIGHT
    show(f"{IN_FLIGHT} in flight, {CANARIES} canaries; aim: at most {most} rows after the first bad one")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        (place := Path(folder, "tokenizer")).mkdir()
        fmt = byte_format(place)
        for sign in SIGNS:
            for good in (0, GOOD):
                if sign is Sign.COST and not good:
                    continue  # the canaries are what the cost is measured by
                (run := Path(folder, f"{sign}-{good}")).mkdir()
                found = measure(sign, run, fmt, good=good, rows=options.rows)
                failed += found.tripped is None
                asked = f"{found.after_first} rows asked from the first bad one on"
                share = f"{found.after_first / LARGE_RUN:.2%} of {LARGE_RUN} rows"
                show(f"{sign:15} turned bad after {good:3}: tripped {found.tripped}, {asked}, {share}")
    return 1 if failed else 0
