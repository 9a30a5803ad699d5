"""Serve OpenRouter's dialect on a loopback port.

    python -m harness emulator [--port PORT] [--pool FILE] [...]

Guarantees: one line, `listening http://127.0.0.1:PORT/api/v1`, once requests are answered; exit 0 after SIGINT or
SIGTERM, 2 with one sentence on stderr where it cannot start.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from random import Random

from harness.emulator.account import Account, RateLimit
from harness.emulator.answers import Answerer, AnswererError, ResegmentAnswerer, load_pool, local_answerer
from harness.emulator.catalog import MODEL
from harness.emulator.faults import FAULTS
from harness.emulator.oracle_log import OracleLog
from harness.emulator.service import Faults, Service
from pipeline.base.screen import say, show
from pipeline.formats.registry import FormatError, load_format
from pipeline.formats.tokenizer import TokenizerError, load_tokenizer

WEIGHTS = Path(__file__).parents[1] / "tiny_target" / "weights"


class StartError(Exception):
    """The emulator cannot start, and why."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m harness emulator", description=__doc__.splitlines()[0])
    top.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    top.add_argument("--weights", type=Path, default=WEIGHTS, help="the model's directory, tokenizer included")
    top.add_argument("--pool", type=Path, help="answer from this JSONL of prepared ids; needs no torch")
    top.add_argument("--format", default="kimi-k2.5", help="how the model's prompts and answers are laid out")
    top.add_argument("--model", default=MODEL, help=f"the slug it is served under (default {MODEL})")
    top.add_argument("--oracle", type=Path, help="append the true ids of every answer to this JSONL")
    top.add_argument("--resegment", type=probability, default=0.0, metavar="P", help="share of answers to re-split")
    top.add_argument("--max-batch", type=count, default=32, metavar="N", help="answers generated at once")
    top.add_argument("--threads", type=count, help="torch threads (default: torch's own choice)")
    top.add_argument("--context", type=count, help="tokens of prompt and answer together (default: the model's)")
    top.add_argument("--seed", type=int, help="seeds requests that carry none (default: fresh)")
    top.add_argument("--limit-usd", type=usd, help="the key's limit in emulated USD (default: none)")
    top.add_argument("--requests-per-minute", type=count, metavar="N", help="429 above this (default: no limit)")
    top.add_argument("--generation-delay", type=float, default=1.0, metavar="S", help="/generation is 404 so long")
    top.add_argument("--require-key", action="store_true", help="401 without a key that looks like OpenRouter's")
    top.add_argument("--fault", choices=sorted(FAULTS), help="what is wrong with every answer (default: nothing)")
    return top


def probability(text: str) -> float:
    """Parse a share from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no probability: give a number from 0 to 1")
    return value


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: give at least 1")
    return value


def usd(text: str) -> Decimal:
    """Parse an amount in USD."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount in USD: give a number such as 0.50")
    return value


def service_of(options: argparse.Namespace, oracle: OracleLog) -> Service:
    """Return the service that the options describe."""
    fmt = load_format(options.format, load_tokenizer(options.weights))
    answerer, context = answerer_of(options)
    if options.resegment > 0:
        answerer = ResegmentAnswerer(answerer, fmt.tokenizer, options.resegment)
    return Service(
        fmt=fmt,
        answerer=answerer,
        oracle=oracle,
        context=options.context or context,
        model=options.model,
        account=Account(options.limit_usd, options.generation_delay),
        rate=RateLimit(options.requests_per_minute),
        faults=FAULTS.get(options.fault, Faults()),
        require_key=options.require_key,
        seeds=Random(options.seed),
    )


def answerer_of(options: argparse.Namespace) -> tuple[Answerer, int]:
    """Return who answers, and the context in tokens.

    Raises StartError, AnswererError.
    """
    if options.pool is not None:
        config = options.weights / "config.json"
        try:
            return load_pool(options.pool), int(json.loads(config.read_bytes())["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError):
            raise StartError(f"{config} names no context. Give it with --context N.") from None
    try:
        return local_answerer(options.weights, most=options.max_batch, threads=options.threads)
    except ImportError as error:
        message = f"{error.name} is not installed, and the model needs it"
        raise StartError(f"{message}. Install the dependency group 'torch', or answer from --pool FILE.") from None


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 0, or 2 without a start."""
    # A signal while torch is still being imported is a plain end as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = parser().parse_args(arguments)
    try:
        run(options)
    except KeyboardInterrupt:
        return 0
    except (StartError, AnswererError, TokenizerError, FormatError) as error:
        say(str(error))
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Serve until a signal; StartError if it cannot start."""
    try:
        from harness.emulator.app import create_app
        from harness.emulator.server import PortError, bind, serve
    except ImportError as error:
        message = f"{error.name} is not installed"
        raise StartError(f"{message}. Install the dependency group 'emulator'.") from None
    try:
        listener = bind(options.port)
    except PortError as error:
        raise StartError(str(error)) from None
    with listener:
        try:
            log = OracleLog(options.oracle)
        except OSError as error:
            raise StartError(f"{options.oracle}: the oracle log cannot be written ({error.strerror})") from None
        with log:
            serve(create_app(service_of(options, log)), listener, lambda url: show(f"listening {url}"))


if __name__ == "__main__":
    sys.exit(main())
