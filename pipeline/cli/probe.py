"""Ask one route the committed probes, and write the exchanges.

    python -m pipeline probe --route ROUTE --model SLUG --budget-usd N --out DIR

Guarantees: the gate is asked before any client is imported and before anything is sent. The most that it may cost is
printed first, and refused where it exceeds the budget. Exit 0 where every request got an answer, 1 where one did not or
the run stopped, 2 on unusable arguments, 3 where the gate is shut, 4 where the budget does not suffice.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.money import pico, usd_text
from pipeline.base.paths import ROOT, ledger_path
from pipeline.base.screen import say, show
from pipeline.cli.options import ArgumentsError, add_accept_unsigned, check_place, positive, usd
from pipeline.fingerprints.models import model_of
from pipeline.formats.registry import FORMATS, open_format
from pipeline.gate.gate import PROBES, SHUT, GateShutError, Job, Kind, require
from pipeline.generation.engines.request import Privacy
from pipeline.generation.ledger import spent_by, spent_today
from pipeline.generation.plan import Plan, RetryPolicy
from pipeline.generation.probe.probes import ProbePlan, read_probes
from pipeline.records import OWN_APIS, Sampling, ToolMode, parse_route
from pipeline.shards.manifest import run_of

if TYPE_CHECKING:
    from pipeline.generation.probe.probe import Findings, ProbeResult

REPEATS = 3
"""How often a probe is asked by default: a trait that only counts show is proven by twenty answers."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("probe", help="ask a route the committed probes, and write the exchanges")
    add_probe(parser)
    add_request(parser)
    parser.set_defaults(run=run)


def add_probe(parser: argparse.ArgumentParser) -> None:
    """Add what is asked, of whom, and where it goes."""
    add = parser.add_argument
    add("--route", required=True, help="openrouter/PROVIDER, which costs money, or emulator/PROVIDER")
    add("--model", required=True, help="the model's slug, such as moonshotai/kimi-k2.5")
    add("--budget-usd", type=usd, required=True, metavar="N", help="the most it may cost, all sessions together")
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of exchanges.jsonl and manifest, new or begun before",
    )
    add_accept_unsigned(parser)
    add("--format", help=f"{', '.join(sorted(FORMATS))} (default: the model's own)")
    add("--tokenizer", metavar="DIR", help="directory with the vocabulary, or hub:REPOSITORY@REVISION")
    add("--base-url", metavar="URL", help="where the emulator listens; loopback only")
    add(
        "--repeats",
        type=positive,
        default=REPEATS,
        metavar="N",
        help=f"how often each probe is asked (default {REPEATS})",
    )
    add("--few", action="store_true", help="only the few probes that show drift")
    add("--only", action="append", default=[], metavar="WORD", help="only probes whose id holds this; may be repeated")


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add what each request says, and their pace."""
    add = parser.add_argument
    add("--data-collection", choices=["deny", "allow"], default="deny", help="whether a provider may keep prompts")
    add("--zdr", action="store_true", help="only endpoints that retain nothing")
    add(
        "--distillable",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="only models whose authors allow training on their text (default)",
    )
    add("--concurrency", type=positive, default=4, metavar="N", help="requests in flight (default 4)")
    add("--attempts", type=positive, default=6, metavar="N", help="tries of a request that is turned away (default 6)")
    add(
        "--resend-unknown", action="store_true", help="ask again what was sent and never answered; it may be paid twice"
    )


def run(args: argparse.Namespace) -> int:
    """Ask the gate, then the route; return the exit status.

    Raises ArgumentsError, RouteError, ProbesError, LedgerError.
    """
    wanted = plan_of(args)
    try:
        permit = require(job_of(wanted), spent_today_pico=spent_today(ledger_path()))
    except GateShutError as error:
        say(*error.lines)
        return SHUT
    from pipeline.generation.outcome import StopError
    from pipeline.generation.probe.probe import run_probe

    try:
        findings = asyncio.run(run_probe(permit, wanted, say=say, root=ROOT, ledger=ledger_path()))
    except StopError as error:
        say(f"error: {error}")
        return error.code
    show(*report(findings, wanted))
    if findings.message:
        say(f"error: {findings.message}. Run the same command again: nothing answered is asked again")
    return findings.code


def plan_of(args: argparse.Namespace) -> ProbePlan:
    """Return the probe that the arguments name."""
    route = parse_route(args.route, model=args.model, stream=False)
    if route.api in OWN_APIS:
        raise ArgumentsError(
            f"the {route.api} route does nothing to text: probe openrouter/PROVIDER or emulator/PROVIDER"
        )
    check_place(route, args.base_url)
    model = model_of(args.model)
    name = args.format or (model.format if model else None)
    if name is None:
        raise ArgumentsError(f"which format {args.model} answers in is not known here: name it with --format")
    if args.out.exists() and not args.out.is_dir():
        raise ArgumentsError(f"{args.out} is a file: give a folder, new or begun before, with --out DIR")
    probes = read_probes(ROOT / PROBES)
    plan = Plan(
        prompts=ROOT / PROBES,
        out=args.out,
        route=route,
        sampling=Sampling(max_tokens=1),  # each probe has its own; this one is held against the endpoint's limit
        tool_mode=ToolMode.NONE,
        fmt=open_format(name, args.tokenizer),
        budget_pico=pico(args.budget_usd),
        base_url=args.base_url,
        concurrency=args.concurrency,
        resend_unknown=args.resend_unknown,
        privacy=Privacy(args.data_collection, enforce_distillable_text=args.distillable, zdr=args.zdr),
        patience=RetryPolicy(args.attempts),
        accept_unsigned=args.accept_unsigned,
    )
    return ProbePlan(plan, probes.sha256, probes.chosen(few=args.few, only=tuple(args.only)), args.repeats)


def job_of(wanted: ProbePlan) -> Job:
    """Return what the gate is asked. Raises LedgerError."""
    plan, before = wanted.plan, run_of(wanted.plan.out)
    return Job(
        kind=Kind.PROBE,
        route=plan.route,
        format=plan.fmt.name,
        tokenizer_sha256=plan.fmt.tokenizer.sha256,
        budget_usd=Decimal(plan.budget_pico).scaleb(-12),
        spent_pico=0 if before is None else spent_by(ledger_path(), before),
        prompts_sha256=wanted.sha256,
    )


def report(findings: Findings, wanted: ProbePlan) -> Iterator[str]:
    """Yield a line for each probe, then the sum."""
    rows: dict[str, list[ProbeResult]] = {}
    for result in findings.told:
        rows.setdefault(result.question.request.row.rpartition("/")[0], []).append(result)
    for name, results in sorted(rows.items()):
        as_known = sum(not result.why for result in results)
        other = next((f"  {result.fate}: {result.why}" for result in results if result.why), "")
        yield f"{name:32} {as_known} of {len(results)} as known{other}"
    yield from (f"left out: {line}" for line in findings.left_out)
    fates = ", ".join(f"{count} {fate}" for fate, count in sorted(findings.by_fate().items()))
    emulated = "" if wanted.plan.route.api == "openrouter" else " (emulated: no money)"
    yield f"{fates or 'nothing asked'}; ${usd_text(findings.spent_pico)} spent{emulated}; {wanted.plan.out}"
