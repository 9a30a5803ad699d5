"""The ledger's cost a request, and a large ledger.

Guarantees: the cost is processor time of the whole process, event loop and ledger thread together, over the operations
that a good answer needs. A large ledger is filled under the name of the run that resumes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from harness.fixtures.runs import World
from harness.measures.load.sides import ROUTE
from pipeline.generation.billing import bill_of
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request
from pipeline.generation.ledger_writer import LedgerWriter

AT_ONCE = 64
RAW = (
    b'data: {"id":"gen-1-load","usage":{"prompt_tokens":30,"completion_tokens":300,"cost":0.0001}}\n\ndata: [DONE]\n\n'
)
BATCH = 20_000


def cost_of_a_request(folder: Path, requests: int) -> float:
    """Return microseconds of processor time for one whole request.

    It is reserved, answered and settled.
    """

    async def work(ledger: Ledger) -> float:
        writer = LedgerWriter(ledger)
        numbers, used = iter(range(requests)), time.process_time()

        async def one() -> None:
            for number in numbers:
                request = Request(f"{number:064x}", "run", ROUTE, f"filled-{number}", b"{}", 1_000_000, "", 1000)
                entry = await writer.do(partial(Ledger.claim, request=request, hold=lambda: None))
                await writer.keep(entry, LedgerAnswer(200, RAW, {"complete": True}, "gen-1-load"), bill_of(RAW))

        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        await writer.close()
        return time.process_time() - used

    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        return asyncio.run(work(ledger)) / requests * 1e6


def prefilled(world: World, run: str, rows: int) -> None:
    """Fill the world's ledger with settled requests of `run`.

    Each has a body and an answer.
    """
    with closing(Ledger(world.ledger)) as ledger:
        for start in range(0, rows, BATCH):
            with ledger.transaction():
                db = ledger._db  # noqa: SLF001 - a million by the front door is an hour
                numbers = range(start, min(start + BATCH, rows))
                db.executemany(f"INSERT INTO requests VALUES ({', '.join('?' * 19)})", _rows(numbers, run))  # noqa: S608
                ids = [(f"{number:064x}",) for number in numbers]
                db.executemany("INSERT INTO bodies VALUES (?, '{}')", ids)
                db.executemany(
                    "INSERT INTO answers VALUES (?, 1, 200, 'gen-1-load', '{}', ?)", ((i, RAW) for (i,) in ids)
                )


def _rows(numbers: range, run: str) -> Iterator[tuple[object, ...]]:
    at = "2026-01-01T00:00:00.000+00:00"
    for number in numbers:
        head = (f"{number:064x}", 1, "settled", run, ROUTE.api, ROUTE.name, ROUTE.model, "", f"filled-{number}")
        yield (*head, at[:10], at, at, at, 1_000_000, 100_000, 30, 300, None, 1000)
