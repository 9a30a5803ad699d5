"""`python -m pipeline ledger`: what was spent, by day, route and dataset, and what is unsettled.

Guarantees: reads only, beside any run, but for `--reconcile`, which asks the provider what unsettled requests really
cost and writes that down. Emulated dollars stand in rows of their own and in no total of real money.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.base.money import usd_text
from pipeline.base.paths import ledger_path
from pipeline.generation.ledger import Ledger, Spend, State, listing
from pipeline.records import Json

UNSETTLED = frozenset({State.RESERVED, State.ANSWERED, State.UNKNOWN})
REAL = "openrouter"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb `ledger`."""
    parser = subparsers.add_parser("ledger", help="list what was spent, by day and route, and what is unsettled")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="another ledger than this checkout's own")
    parser.add_argument("--reconcile", action="store_true", help="ask the provider what unsettled requests cost")
    parser.add_argument("--base-url", metavar="URL", help="with --reconcile: the emulator to ask about emulated ones")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run_ledger)


def run_ledger(args: argparse.Namespace) -> int:
    """Print the listing. Raises LedgerError."""
    path = args.ledger or ledger_path()
    if args.reconcile and (code := _reconcile(path, args.base_url)):
        return code
    lines = listing(path)
    if args.json:
        sys.stdout.write(json.dumps(document(path, lines), indent=2) + "\n")
    else:
        _print(path, lines)
    return 0


def _reconcile(path: Path, base_url: str | None) -> int:
    """Settle what the provider knows the cost of; the exit status where it could not be asked. Raises LedgerError."""
    from pipeline.generation.engines.catalog import CatalogError
    from pipeline.generation.engines.openrouter import KeyMissingError, NoAnswerError

    try:
        found = asyncio.run(_asked(path, base_url))
    except (CatalogError, KeyMissingError, NoAnswerError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for what, count in sorted(found.items()):
        sys.stderr.write(f"{count} requests: {what}\n")
    return 0


async def _asked(path: Path, base_url: str | None) -> Mapping[str, int]:
    from pipeline.generation.engines.openrouter import open_client
    from pipeline.generation.reconcile import reconcile

    api: Literal["openrouter", "emulator"] = "openrouter" if base_url is None else "emulator"
    async with open_client(api, base_url) as client:
        with contextlib.closing(Ledger(path)) as ledger:
            return {str(what): count for what, count in (await reconcile(client, ledger, api)).items()}


def document(path: Path, lines: Sequence[Spend]) -> dict[str, Json]:
    """The listing as JSON, money as exact decimals in USD; an unsettled line's is the worst case."""
    spend: list[Json] = [
        {
            "day": line.day,
            "route": line.route,
            "dataset": line.dataset,
            "state": str(line.state),
            "requests": line.requests,
            "usd": usd_text(line.pico),
            "emulated": line.api != REAL,
        }
        for line in lines
    ]
    return {
        "ledger": str(path),
        "spend": spend,
        "total": _totals(lines, real=True),
        "emulated": _totals(lines, real=False),
    }


def _totals(lines: Sequence[Spend], *, real: bool) -> dict[str, Json]:
    mine = [line for line in lines if (line.api == REAL) == real]
    open_lines = [line for line in mine if line.state in UNSETTLED]
    return {
        "settled_usd": usd_text(sum(line.pico for line in mine if line.state is State.SETTLED)),
        "unsettled_worst_usd": usd_text(sum(line.pico for line in open_lines)),
        "unsettled_requests": sum(line.requests for line in open_lines),
        "unknown_requests": sum(line.requests for line in mine if line.state is State.UNKNOWN),
    }


def _print(path: Path, lines: Sequence[Spend]) -> None:
    console = Console(markup=False, highlight=False)
    if not lines:
        console.print(f"{path}: no request yet", soft_wrap=True)
        return
    table = Table(*("day (UTC)", "route", "dataset", "state", "requests", "USD"))
    for line in lines:
        money = f"{usd_text(line.pico)}{' at most' * (line.state in UNSETTLED)}{' emulated' * (line.api != REAL)}"
        table.add_row(*map(Text, (line.day, line.route, line.dataset, line.state, str(line.requests), money)))
    console.print(table)
    totals = _totals(lines, real=True)
    console.print(
        f"real money: ${totals['settled_usd']} settled, at most ${totals['unsettled_worst_usd']} more in"
        f" {totals['unsettled_requests']} unsettled requests, {totals['unknown_requests']} of them of unknown fate",
        soft_wrap=True,
    )
