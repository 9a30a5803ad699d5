"""List what was spent, or print one paid answer.

    python -m pipeline ledger [--answer REQUEST | --reconcile]

The listing is by day, route and dataset, with what is unsettled. Guarantees: it only reads, and may be used while a run
is on; but `--reconcile` asks the provider what unsettled requests really cost and writes that down. Emulated dollars
have rows of their own and are in no total of real money.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pipeline.base.money import usd_text
from pipeline.base.paths import ledger_path
from pipeline.base.screen import say, show, show_bytes, show_json, show_table
from pipeline.cli.options import ArgumentsError
from pipeline.generation.ledger import Ledger, Spend, State, answer_of, listing
from pipeline.records import Json

UNSETTLED = frozenset({State.RESERVED, State.ANSWERED, State.UNKNOWN})
REAL = "openrouter"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("ledger", help="list what was spent, by day and route, and what is unsettled")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="another ledger than this checkout's own")
    parser.add_argument(
        "--answer", metavar="REQUEST", help="print the answer to this request, byte for byte; escaped on a terminal"
    )
    parser.add_argument("--reconcile", action="store_true", help="ask the provider what unsettled requests cost")
    parser.add_argument("--base-url", metavar="URL", help="with --reconcile: the emulator to ask about emulated ones")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run_ledger)


def run_ledger(args: argparse.Namespace) -> int:
    """Print the listing, or one answer. Raises ArgumentsError, LedgerError."""
    path = args.ledger or ledger_path()
    if args.answer is not None:
        if args.reconcile or args.json:
            raise ArgumentsError("--answer prints an answer as it came: leave out --reconcile and --json")
        if (body := answer_of(path, args.answer)) is None:
            what = f"{path} holds no answer to a request {args.answer!r}"
            raise ArgumentsError(f"{what}: give the quarantine line's `request`")
        show_bytes(body)
        return 0
    if args.reconcile and (code := _reconcile(path, args.base_url)):
        return code
    lines = listing(path)
    if args.json:
        show_json(document(path, lines), indent=2)
    else:
        _print(path, lines)
    return 0


def _reconcile(path: Path, base_url: str | None) -> int:
    """Settle requests whose cost the provider knows.

    Returns 0, or 1 where the provider could not be asked. Raises LedgerError.
    """
    from pipeline.generation.engines.catalog import CatalogError
    from pipeline.generation.engines.openrouter import KeyMissingError, NoAnswerError, open_client
    from pipeline.generation.reconcile import reconcile

    api: Literal["openrouter", "emulator"] = "openrouter" if base_url is None else "emulator"

    async def settled() -> dict[str, int]:
        async with open_client(api, base_url) as client:
            with contextlib.closing(Ledger(path)) as ledger:
                return {str(what): count for what, count in (await reconcile(client, ledger, api)).items()}

    try:
        counts = asyncio.run(settled())
    except (CatalogError, KeyMissingError, NoAnswerError, ValueError) as error:
        say(f"error: {error}")
        return 1
    say(*(f"{count} requests: {what}" for what, count in sorted(counts.items())))
    return 0


def document(path: Path, lines: Sequence[Spend]) -> dict[str, Json]:
    """Return the listing as JSON.

    Money is exact decimals in USD; an unsettled line has its worst case.
    """
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
    if not lines:
        show(f"{path}: no request yet")
        return
    rows = []
    for line in lines:
        money = f"{usd_text(line.pico)}{' at most' * (line.state in UNSETTLED)}{' emulated' * (line.api != REAL)}"
        rows.append((line.day, line.route, line.dataset, line.state, str(line.requests), money))
    show_table(rows, ("day (UTC)", "route", "dataset", "state", "requests", "USD"))
    totals = _totals(lines, real=True)
    show(
        f"real money: ${totals['settled_usd']} settled, at most ${totals['unsettled_worst_usd']} more in"
        f" {totals['unsettled_requests']} unsettled requests, {totals['unknown_requests']} of them of unknown fate"
    )
