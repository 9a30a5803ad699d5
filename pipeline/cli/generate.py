"""Ask a model for completions and keep the proven ones.

    python -m pipeline generate --prompts FILE --route ROUTE --out DIR --budget-usd N

Guarantees: the gate is asked before any client is imported and before anything is sent. Refused, the exit status is 3
and every reason comes with the command that mends it. Argparse refuses a value that a flag cannot have, and names those
that it can.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from pipeline.base.money import pico
from pipeline.base.paths import ROOT, ledger_path
from pipeline.base.screen import say, show_json
from pipeline.cli.options import ArgumentsError, add_accept_unsigned, check_place, positive, usd
from pipeline.datasets.audit import Audit
from pipeline.datasets.prompt_source import HUB, is_prepared
from pipeline.datasets.registry import dataset_named
from pipeline.datasets.sources import files_of
from pipeline.formats.registry import FORMATS, open_format
from pipeline.gate.gate import SHUT, Decision, GateShutError, Job, Kind, Standing, examine, judge
from pipeline.generation.breaker import CANARIES, LIMITS, Sign
from pipeline.generation.coverage import audited, cover_of, lacks, needed, table
from pipeline.generation.engines.request import Privacy
from pipeline.generation.ledger import spent_by, spent_today
from pipeline.generation.plan import BreakerPolicy, Caps, Plan, RetryPolicy
from pipeline.generation.preflight import better_form
from pipeline.proof.fingerprint import committed_fingerprints
from pipeline.records import OWN_APIS, Json, Route, Sampling, ToolMode, parse_route
from pipeline.shards.manifest import run_of

TINY_WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"
TINY_MODEL, TINY_FORMAT, DEFAULT_FORMAT = "drafter-gate/tiny-kimi", "tiny-kimi", "kimi-k2.5"

CAPS: Mapping[str, str] = {
    "budget-tokens": "tokens in this run, all sessions together",
    "budget-requests": "requests in this run, all sessions together",
    "day-usd": "dollars a UTC day, over all runs of this checkout through the same API",
    "day-tokens": "tokens a UTC day, over all such runs",
    "day-requests": "requests a UTC day, over all such runs",
}
"""The caps beside --budget-usd, by flag."""
LIMITS_SHOWN = ", ".join(f"{sign}={limit:g}" for sign, limit in LIMITS.items())


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("generate", help="ask a model for completions and keep the proven ones")
    for add in (add_source, add_request, add_money, add_limits):
        add(parser)
    parser.set_defaults(run=run_generate)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add what is asked, of whom, and where it goes."""
    add = parser.add_argument
    add("--prompts", type=Path, required=True, metavar="SOURCE", help="JSON lines of id, messages, tools?, thinking?")
    add("--dataset", metavar="NAME", help="--prompts holds its rows, as published or as `prepare` wrote them")
    add("--only-covered", action="store_true", help="set aside the rows that use what no contract covers")
    add("--allow-secret-shapes", action="store_true", help="send prompts that hold what has the shape of a key, too")
    add("--route", required=True, help="emulator/PROVIDER, openrouter/PROVIDER, local, sglang or vllm")
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of shards, quarantine and manifest, new or begun before",
    )
    add_accept_unsigned(parser)
    add("--model", help=f"the model's slug (default, but for openrouter: {TINY_MODEL})")
    add("--format", help=f"{', '.join(sorted(FORMATS))} (default: {DEFAULT_FORMAT}, {TINY_FORMAT} for the tiny target)")
    add("--tokenizer", metavar="DIR", help="directory of the vocabulary, or hub:REPOSITORY@REVISION")
    add("--weights", type=Path, metavar="DIR", help="the local route's model (default: the tiny target)")
    add("--base-url", metavar="URL", help="where the emulator or the engine listens; loopback only")
    add("--limit", type=positive, metavar="N", help="only the first N rows of the file")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add what each request says."""
    add, either = parser.add_argument, argparse.BooleanOptionalAction
    add("--stream", action=either, help="ask for a stream or for one body (default: the form that proves more)")
    add(
        "--tools",
        choices=["raw", "structured"],
        help="declare tools in the prompt, or as `tools` (default: the dataset's way)",
    )
    add("--max-tokens", type=positive, default=256, metavar="N", help="longest answer (default 256)")
    add("--temperature", type=temperature, default=1.0, metavar="T", help="0 to 2 (default 1)")
    add("--seed", type=int, metavar="S", help="each row's own seed is drawn from it")
    add("--logprobs", action="store_true", help="ask for logprobs, where the endpoint has them")
    add("--return-token-ids", action="store_true", help="ask for the ids themselves, where the engine returns them")
    add("--data-collection", choices=["deny", "allow"], default="deny", help="whether a provider may keep prompts")
    add("--zdr", action="store_true", help="only endpoints that retain nothing")
    distillable = "only models whose authors allow training on their text (default)"
    add("--distillable", action=either, default=True, help=distillable)


def add_money(parser: argparse.ArgumentParser) -> None:
    """Add what a run may spend."""
    add = parser.add_argument
    add("--budget-usd", type=usd, required=True, metavar="N", help="the most this run may cost, all sessions together")
    for name, what in CAPS.items():
        add(f"--{name}", type=usd if name.endswith("usd") else positive, metavar="N", help=f"at most N {what}")
    resend = "ask again what was sent and never answered; it may be paid twice"
    add("--resend-unknown", action="store_true", help=resend)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add how fast a run goes, and what stops it."""
    add = parser.add_argument
    add("--concurrency", type=positive, default=16, metavar="N", help="requests in flight, or the local batch")
    add("--attempts", type=positive, default=6, metavar="N", help="tries of a request that is turned away (default 6)")
    add("--canaries", type=positive, default=CANARIES, metavar="N", help=f"rows judged first (default {CANARIES})")
    add(
        "--trip",
        type=limit_named,
        action="append",
        default=[],
        metavar="SIGN=SHARE",
        help=f"another limit: {LIMITS_SHOWN}",
    )
    add("--resume", action="store_true", help="continue a run that the breaker paused; it is judged again")
    accepted = f"do not stop for this sign: {', '.join(Sign)}"
    add("--accept-trip", type=sign_named, action="append", default=[], metavar="SIGN", help=accepted)


def sign_named(text: str) -> Sign:
    """Parse a sign of the breaker. Raises argparse.ArgumentTypeError."""
    try:
        return Sign(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no sign: there are {', '.join(Sign)}") from None


def temperature(text: str) -> float:
    """Parse a temperature. Raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:  # noqa: PLR2004 - the range that the API documents
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature: give a number from 0 to 2")
    return value


def limit_named(text: str) -> tuple[Sign, float]:
    """Parse `SIGN=SHARE`. Raises argparse.ArgumentTypeError."""
    name, _, number = text.partition("=")
    try:
        sign, limit = Sign(name), float(number)
    except ValueError:
        limit = -1.0
    most = math.inf if name == Sign.COST else 1.0
    if name == Sign.BUDGET or not 0 <= limit <= most or limit == math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no limit: give SIGN=SHARE, as in {LIMITS_SHOWN}")
    return sign, limit


def run_generate(args: argparse.Namespace) -> int:
    """Ask the gate, run, report; return the exit status."""
    plan, standing = plan_of(args), examine(ROOT)
    audit = audited(plan)
    cover = cover_of(audit, plan, standing, only_covered=args.only_covered)
    job = replace(job_of(plan, audit), features=cover.features)
    decision = judge(job, standing, spent_today_pico=spent_today(ledger_path()))
    if decision.permit is None:
        _report_shut(decision, audit, plan, standing, args)
        return SHUT
    from pipeline.cli.report import print_summary, progress
    from pipeline.generation.generate import run_generation
    from pipeline.generation.outcome import StopError

    try:
        with progress(emulated=plan.route.api != "openrouter") as show:
            running = run_generation(decision.permit, replace(plan, cover=cover), progress=show)
            summary = asyncio.run(running)
    except StopError as error:
        say(f"error: {error}")
        return error.code
    if args.json:
        show_json(summary.document())
    else:
        print_summary(summary, sys.argv[1:])
    return summary.code


def _report_shut(decision: Decision, audit: Audit, plan: Plan, standing: Standing, args: argparse.Namespace) -> None:
    """Print every objection, and rows that lack a contract."""
    say(*GateShutError(decision).lines)
    found = [] if standing.attested is None or args.only_covered else lacks(audit, plan, standing)
    if found:
        say(*table(found, audit, plan))
    if args.json:
        objections: list[Json] = [{"what": each.what, "mend": each.mend} for each in decision.objections]
        uncovered: list[Json] = [lack.document() for lack in found]
        shut: dict[str, Json] = {"outcome": "refused", "exit": SHUT, "objections": objections, "uncovered": uncovered}
        show_json(shut | {"audit": audit.document(), "audit_sha256": audit.sha256})


def plan_of(args: argparse.Namespace) -> Plan:
    """Return the plan that the arguments name.

    Raises ArgumentsError, RouteError, SourceError, FormatError, TokenizerError.
    """
    route = _route(args)
    _check_paths(args.prompts, args.out, args.dataset)
    if args.tools is None:
        tools = ToolMode.RAW if args.dataset is None else dataset_named(args.dataset).tools
    else:
        tools = ToolMode(args.tools)
    if route.api in OWN_APIS and tools is ToolMode.STRUCTURED:
        raise ArgumentsError(f"the {route.api} route declares tools in the prompt alone: use --tools raw")
    name = args.format or (TINY_FORMAT if route.model == TINY_MODEL else DEFAULT_FORMAT)
    day_pico = None if args.day_usd is None else pico(args.day_usd)
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
        allow_secret_shapes=args.allow_secret_shapes,
        privacy=Privacy(args.data_collection, enforce_distillable_text=args.distillable, zdr=args.zdr),
        caps=Caps(args.budget_tokens, args.budget_requests, day_pico, args.day_tokens, args.day_requests),
        patience=RetryPolicy(args.attempts),
        watch=BreakerPolicy(dict(args.trip), frozenset(args.accept_trip), args.canaries, args.resume),
        dataset=args.dataset or "",
        accept_unsigned=args.accept_unsigned,
    )


def _route(args: argparse.Namespace) -> Route:
    """Return the route that the arguments name.

    An emulated provider must be one that was measured; a real one may be new, and the gate judges it. Raises
    ArgumentsError, RouteError.
    """
    if args.model is None and args.route.partition("/")[0] == "openrouter":
        raise ArgumentsError("the openrouter route needs a model: give its slug with --model AUTHOR/SLUG")
    if args.route != args.route.lower():
        raise ArgumentsError(f"route names are lower case: use --route {args.route.lower()}")
    model, fingerprints = args.model or TINY_MODEL, committed_fingerprints(ROOT)
    stream = better_form(args.route, model, fingerprints) if args.stream is None else args.stream
    route = parse_route(args.route, model=model, stream=stream)
    check_place(route, args.base_url)
    known = sorted({found.provider.lower() for found in fingerprints})
    if known and route.api == "emulator" and route.provider.partition("/")[0] not in known:
        there = ", ".join(f"emulator/{name}" for name in known)
        raise ArgumentsError(f"{route.name} has no fingerprint and no contract here; there are {there}")
    return route


def _check_paths(prompts: Path, out: Path, dataset: str | None) -> None:
    """Refuse sources and folders that cannot be used.

    Raises ArgumentsError; SourceError for an unknown dataset, or a source that names no file.
    """
    if dataset is not None:
        dataset_named(dataset)
        if not str(prompts).startswith(HUB) and not is_prepared(prompts):
            files_of(str(prompts))
    elif not prompts.is_file():
        what = "is a folder" if prompts.is_dir() else "no prompts file there"
        raise ArgumentsError(f"{prompts}: {what}. Give a file with --prompts FILE.jsonl")
    if out.exists() and not out.is_dir():
        raise ArgumentsError(f"{out} is a file: give a folder, new or begun before, with --out DIR")


def job_of(plan: Plan, audit: Audit | None = None) -> Job:
    """Return what the gate is asked. Raises LedgerError."""
    run = run_of(plan.out)
    return Job(
        kind=Kind.GENERATE,
        route=plan.route,
        format=plan.fmt.name,
        tokenizer_sha256=plan.fmt.tokenizer.sha256,
        features=needed(audited(plan) if audit is None else audit),
        budget_usd=Decimal(plan.budget_pico).scaleb(-12),
        spent_pico=0 if run is None else spent_by(ledger_path(), run),
    )
