"""`python -m pipeline generate`: arguments, the gate, the run, the table.

Guarantees: the gate is asked before any client is imported and before anything is sent; refused, the exit status is 3
and every reason comes with the command that mends it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from pipeline.base.money import pico
from pipeline.base.paths import ROOT, ledger_path
from pipeline.cli.generate_flags import (
    DEFAULT_FORMAT,
    TINY_FORMAT,
    TINY_MODEL,
    add_money,
    add_request,
    add_source,
    add_watch,
)
from pipeline.cli.options import ArgumentsError, check_place
from pipeline.datasets.audit import Audit
from pipeline.datasets.prompt_source import HUB, is_prepared
from pipeline.datasets.registry import dataset_named
from pipeline.datasets.sources import files_of
from pipeline.formats.registry import open_format
from pipeline.gate.gate import SHUT, Decision, GateShutError, Job, Kind, Permit, Standing, examine, judge
from pipeline.generation.coverage import audited, cover_of, lacks, needed, table
from pipeline.generation.engines.request import Privacy
from pipeline.generation.forms import better_form
from pipeline.generation.ledger import spent_by, spent_today
from pipeline.generation.plan import Caps, Patience, Plan, Watch
from pipeline.proof.fingerprint import OWN_APIS, committed_fingerprints, parse_route
from pipeline.records import Json, Route, Sampling, ToolMode
from pipeline.shards.manifest import run_of

TINY_WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb `generate`."""
    parser = subparsers.add_parser("generate", help="ask a model for completions and keep the proven ones")
    for add in (add_source, add_request, add_money, add_watch):
        add(parser)
    parser.set_defaults(run=run_generate)


def run_generate(args: argparse.Namespace) -> int:
    """Gate, then run, then summary; the exit status."""
    plan, standing = plan_of(args), examine(ROOT)
    audit = audited(plan)
    cover = cover_of(audit, plan, standing, only_covered=args.only_covered)
    job = replace(job_of(plan, audit), features=cover.features)
    decision = judge(job, standing, spent_today_pico=spent_today(ledger_path(), "openrouter"))
    if decision.permit is None:
        _say_shut(decision, audit, plan, standing, args)
        return SHUT
    return _run(decision.permit, replace(plan, cover=cover), args)


def _say_shut(decision: Decision, audit: Audit, plan: Plan, standing: Standing, args: argparse.Namespace) -> None:
    """Every reason with what mends it; where contracts are what is lacking, the rows that they would cover."""
    sys.stderr.write(f"{GateShutError(decision)}\n")
    found = [] if standing.attested is None or args.only_covered else lacks(audit, plan, standing)
    if found:
        sys.stderr.write("".join(f"{line}\n" for line in table(found, audit, plan)))
    if args.json:
        objections: list[Json] = [{"what": each.what, "mend": each.mend} for each in decision.objections]
        uncovered: list[Json] = [lack.document() for lack in found]
        shut: dict[str, Json] = {"outcome": "refused", "exit": SHUT, "objections": objections, "uncovered": uncovered}
        sys.stdout.write(json.dumps(shut | {"audit": audit.document(), "audit_sha256": audit.sha256}) + "\n")


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the arguments name. Raises ArgumentsError, RouteError, FormatError, TokenizerError."""
    api = args.route.partition("/")[0]
    if args.model is None and api == "openrouter":
        raise ArgumentsError("the openrouter route needs a model: give its slug with --model AUTHOR/SLUG")
    if args.route != args.route.lower():
        raise ArgumentsError(f"route names are lower case: use --route {args.route.lower()}")
    model = args.model or TINY_MODEL
    stream = better_form(args.route, model, committed_fingerprints(ROOT)) if args.stream is None else args.stream
    route = parse_route(args.route, model=model, stream=stream)
    check_place(route, args.base_url)
    _check_provider(route)
    _check_paths(args.prompts, args.out, args.dataset)
    tools = _tools(args.tools, args.dataset)
    if route.api in OWN_APIS and tools is ToolMode.STRUCTURED:
        raise ArgumentsError(f"the {route.api} route declares tools in the prompt alone: use --tools raw")
    name = args.format or (TINY_FORMAT if route.model == TINY_MODEL else DEFAULT_FORMAT)
    return Plan(
        prompts=args.prompts,
        out=args.out,
        route=route,
        sampling=Sampling(args.temperature, args.max_tokens, args.seed, args.logprobs, args.return_token_ids),
        tool_mode=tools,
        fmt=open_format(name, args.tokenizer),
        budget_pico=pico(args.budget_usd),
        base_url=args.base_url,
        weights=(args.weights or TINY_WEIGHTS) if route.api == "local" else None,
        concurrency=args.concurrency,
        limit=args.limit,
        resend_unknown=args.resend_unknown,
        privacy=Privacy(args.data_collection, enforce_distillable_text=args.distillable, zdr=args.zdr),
        caps=_caps(args),
        patience=Patience(args.attempts),
        watch=Watch(dict(args.trip), frozenset(args.accept_trip), args.canaries, args.resume),
        dataset=args.dataset or "",
    )


def _tools(asked: str | None, dataset: str | None) -> ToolMode:
    """How tools travel: as asked, else as the dataset says, else in the prompt."""
    if asked is not None:
        return ToolMode(asked)
    return ToolMode.RAW if dataset is None else dataset_named(dataset).tools


def _caps(args: argparse.Namespace) -> Caps:
    day = None if args.day_usd is None else pico(args.day_usd)
    return Caps(args.budget_tokens, args.budget_requests, day, args.day_tokens, args.day_requests)


def job_of(plan: Plan, audit: Audit | None = None) -> Job:
    """What the gate is asked: this route, format and tokenizer, the features of these prompts, this budget.

    Raises LedgerError.
    """
    return Job(
        kind=Kind.GENERATE,
        route=plan.route,
        format=plan.fmt.name,
        tokenizer_sha256=plan.fmt.tokenizer.sha256,
        features=needed(audited(plan) if audit is None else audit),
        budget_usd=Decimal(plan.budget_pico).scaleb(-12),
        spent_pico=_spent_before(plan),
    )


def _spent_before(plan: Plan) -> int:
    """What earlier sessions of the run in this folder spent of its budget."""
    run = run_of(plan.out)
    return 0 if run is None else spent_by(ledger_path(), run)


def _run(permit: Permit, plan: Plan, args: argparse.Namespace) -> int:
    from pipeline.cli.report import print_summary, progress
    from pipeline.generation.generate import run_generation
    from pipeline.generation.paid_client import StopError

    try:
        with progress(emulated=plan.route.api != "openrouter") as show:
            summary = asyncio.run(run_generation(permit, plan, progress=show))
    except StopError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.code
    if args.json:
        sys.stdout.write(json.dumps(summary.document()) + "\n")
    else:
        print_summary(summary, sys.argv[1:])
    return summary.code


def _check_provider(route: Route) -> None:
    """An emulated provider is one that was measured; a real one may be new, and the gate judges it."""
    known = sorted({found.provider.lower() for found in committed_fingerprints(ROOT)})
    if known and route.api == "emulator" and route.provider.partition("/")[0] not in known:
        there = ", ".join(f"emulator/{name}" for name in known)
        raise ArgumentsError(f"{route.name} has no fingerprint and no contract here; there are {there}")


def _check_paths(prompts: Path, out: Path, dataset: str | None) -> None:
    if dataset is not None:
        _check_source(prompts, dataset)
    elif not prompts.is_file():
        what = "is a folder" if prompts.is_dir() else "no prompts file there"
        raise ArgumentsError(f"{prompts}: {what}. Give a file with --prompts FILE.jsonl")
    if out.exists() and not out.is_dir():
        raise ArgumentsError(f"{out} is a file: give a folder, new or begun before, with --out DIR")


def _check_source(source: Path, dataset: str) -> None:
    """Raises SourceError for an unknown dataset, or a source that names no file."""
    dataset_named(dataset)
    if not str(source).startswith(HUB) and not is_prepared(source):
        files_of(str(source))
