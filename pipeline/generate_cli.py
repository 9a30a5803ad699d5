"""`python -m pipeline generate`: arguments, the gate, the run, the table.

Guarantees: the gate is asked before any client is imported and before anything is sent; refused, the exit status is 3
and every reason comes with the command that mends it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.audit import features_of_all
from pipeline.formats.registry import FORMATS, open_format
from pipeline.gate import SHUT, GateShutError, Job, Kind, Permit, require
from pipeline.ledger import spent_by, spent_today
from pipeline.manifest import run_of
from pipeline.money import pico
from pipeline.plan import Plan
from pipeline.records import Prompt, Route, Sampling, ToolMode
from pipeline.routes import committed_fingerprints, parse_route
from pipeline.state import ROOT, ledger_path

TINY_MODEL, TINY_FORMAT, DEFAULT_FORMAT = "drafter-gate/tiny-kimi", "tiny-kimi", "kimi-k2.5"
TINY_WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ArgumentsError(Exception):
    """Arguments that cannot be used together, or name what is not there."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb `generate`."""
    parser = subparsers.add_parser("generate", help="ask a model for completions and keep the proven ones")
    add = parser.add_argument
    add("--prompts", type=Path, required=True, metavar="FILE.jsonl", help="id, messages, tools?, thinking? a line")
    add("--route", required=True, help="emulator/PROVIDER, openrouter/PROVIDER or local")
    add("--out", type=Path, required=True, metavar="DIR", help="shards, quarantine and manifest; begun or gone on with")
    add("--budget-usd", type=_usd, required=True, metavar="N", help="the most this run may cost, all sessions together")
    add("--model", help=f"the model's slug (default, but for openrouter: {TINY_MODEL})")
    add("--format", help=f"{', '.join(sorted(FORMATS))} (default: {DEFAULT_FORMAT}, {TINY_FORMAT} for the tiny target)")
    add("--tokenizer", metavar="DIR", help="directory with tiktoken.model, or hub:REPOSITORY@REVISION")
    add("--weights", type=Path, metavar="DIR", help="the local route's model (default: the tiny target)")
    add("--base-url", metavar="URL", help="where the emulator listens; loopback only")
    add("--stream", action=argparse.BooleanOptionalAction, default=True, help="ask for a stream (default) or one body")
    add("--tools", choices=["raw", "structured"], default="raw", help="declared in the prompt (default), or as `tools`")
    add("--max-tokens", type=_positive, default=256, metavar="N", help="longest answer (default 256)")
    add("--temperature", type=_temperature, default=1.0, metavar="T", help="0 to 2 (default 1)")
    add("--seed", type=int, metavar="S", help="each row's own seed is drawn from it")
    add("--logprobs", action="store_true", help="ask for logprobs, where the endpoint has them")
    add("--return-token-ids", action="store_true", help="ask for the ids themselves, where the engine returns them")
    add("--concurrency", type=_positive, default=16, metavar="N", help="requests in flight, or the local batch")
    add("--limit", type=_positive, metavar="N", help="only the first N rows of the file")
    add(
        "--resend-unknown", action="store_true", help="ask again what was sent and never answered: it may be paid twice"
    )
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")
    parser.set_defaults(run=run_generate)


def run_generate(args: argparse.Namespace) -> int:
    """Gate, then run, then summary; the exit status."""
    plan = plan_of(args)
    try:
        permit = require(job_of(plan), spent_today_pico=spent_today(ledger_path(), "openrouter"))
    except GateShutError as error:
        sys.stderr.write(f"{error}\n")
        return SHUT
    return _run(permit, plan, args)


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the arguments name. Raises ArgumentsError, RouteError, FormatError, TokenizerError."""
    api = args.route.partition("/")[0]
    if args.model is None and api == "openrouter":
        raise ArgumentsError("the openrouter route needs a model: give its slug with --model AUTHOR/SLUG")
    if args.route != args.route.lower():
        raise ArgumentsError(f"route names are lower case: use --route {args.route.lower()}")
    route = parse_route(args.route, model=args.model or TINY_MODEL, stream=args.stream)
    _check_place(route, args.base_url)
    _check_provider(route)
    _check_paths(args.prompts, args.out)
    if route.api == "local" and args.tools == ToolMode.STRUCTURED:
        raise ArgumentsError("the local route declares tools in the prompt alone: use --tools raw")
    name = args.format or (TINY_FORMAT if route.model == TINY_MODEL else DEFAULT_FORMAT)
    return Plan(
        prompts=args.prompts,
        out=args.out,
        route=route,
        sampling=Sampling(args.temperature, args.max_tokens, args.seed, args.logprobs, args.return_token_ids),
        tool_mode=ToolMode(args.tools),
        fmt=open_format(name, args.tokenizer),
        budget_pico=pico(args.budget_usd),
        base_url=args.base_url,
        weights=(args.weights or TINY_WEIGHTS) if route.api == "local" else None,
        concurrency=args.concurrency,
        limit=args.limit,
        resend_unknown=args.resend_unknown,
    )


def job_of(plan: Plan) -> Job:
    """What the gate is asked: this route, format and tokenizer, the features of these prompts, this budget.

    Raises LedgerError.
    """
    prompts = (line for line in plan.lines() if isinstance(line, Prompt))
    return Job(
        kind=Kind.GENERATE,
        route=plan.route,
        format=plan.fmt.name,
        tokenizer_sha256=plan.fmt.tokenizer.sha256,
        features=frozenset(str(feature) for feature in features_of_all(prompts, plan.tool_mode)),
        budget_usd=Decimal(plan.budget_pico).scaleb(-12),
        spent_pico=_spent_before(plan),
    )


def _spent_before(plan: Plan) -> int:
    """What earlier sessions of the run in this folder spent of its budget."""
    run = run_of(plan.out)
    return 0 if run is None else spent_by(ledger_path(), run)


def _run(permit: Permit, plan: Plan, args: argparse.Namespace) -> int:
    from pipeline.asking import StopError
    from pipeline.generate import run_generation
    from pipeline.report import print_summary, progress

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


def _check_place(route: Route, base_url: str | None) -> None:
    if route.api == "emulator":
        start = "Start one with: python -m harness.emulator --port 0"
        if base_url is None:
            raise ArgumentsError(f"the emulator route needs --base-url URL. {start}")
        if urlsplit(base_url).hostname not in LOOPBACK:
            raise ArgumentsError(f"{base_url} is not on this machine, where alone an emulator is asked. {start}")
    elif base_url is not None:
        raise ArgumentsError(f"--base-url is for the emulator; {route.name} has its own place. Leave it out")


def _check_provider(route: Route) -> None:
    """An emulated provider is one that was measured; a real one may be new, and the gate judges it."""
    known = sorted({found.provider.lower() for found in committed_fingerprints(ROOT)})
    if known and route.api == "emulator" and route.provider.partition("/")[0] not in known:
        there = ", ".join(f"emulator/{name}" for name in known)
        raise ArgumentsError(f"{route.name} has no fingerprint and no contract here; there are {there}")


def _check_paths(prompts: Path, out: Path) -> None:
    if not prompts.is_file():
        what = "is a folder" if prompts.is_dir() else "no prompts file there"
        raise ArgumentsError(f"{prompts}: {what}. Give a file with --prompts FILE.jsonl")
    if out.exists() and not out.is_dir():
        raise ArgumentsError(f"{out} is a file: give a folder, new or begun before, with --out DIR")


def _usd(text: str) -> Decimal:
    try:
        amount = Decimal(text)
        pico(amount)
    except (InvalidOperation, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount in USD: give a number such as 0.50") from None
    return amount


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:  # noqa: PLR2004 - the range that the API documents
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature: give a number from 0 to 2")
    return value
