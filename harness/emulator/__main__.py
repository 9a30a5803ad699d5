"""`python -m harness emulator`: OpenRouter's dialect on a loopback port, over the tiny target or a pool of answers.

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
from harness.emulator.oracle_log import OracleLog
from harness.emulator.service import Service
from pipeline.formats.registry import FormatError, load_format
from pipeline.formats.tokenizer import TokenizerError, load_tokenizer

WEIGHTS = Path(__file__).parents[1] / "tiny_target" / "weights"


class StartError(Exception):
    """The emulator cannot start, and why."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness emulator", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="the model's directory, tokenizer included")
    parser.add_argument("--pool", type=Path, help="answer from this JSONL of prepared ids; needs no torch")
    parser.add_argument("--format", default="kimi-k2.5", help="how the model's prompts and answers are laid out")
    parser.add_argument("--model", default=MODEL, help=f"the slug it is served under (default {MODEL})")
    parser.add_argument("--oracle", type=Path, help="append the true ids of every answer to this JSONL")
    parser.add_argument("--resegment", type=_probability, default=0.0, metavar="P", help="share of answers to re-split")
    parser.add_argument("--max-batch", type=_count, default=32, metavar="N", help="answers generated at once")
    parser.add_argument("--threads", type=_count, help="torch threads (default: torch's own choice)")
    parser.add_argument("--context", type=_count, help="tokens of prompt and answer together (default: the model's)")
    parser.add_argument("--seed", type=int, help="seeds requests that carry none (default: fresh)")
    parser.add_argument("--limit-usd", type=_usd, help="the key's limit in emulated USD (default: none)")
    parser.add_argument("--requests-per-minute", type=_count, metavar="N", help="429 above this (default: no limit)")
    parser.add_argument("--generation-delay", type=float, default=1.0, metavar="S", help="/generation is 404 so long")
    parser.add_argument("--require-key", action="store_true", help="401 without a key that looks like OpenRouter's")
    return parser


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no probability: give a number from 0 to 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: give at least 1")
    return value


def _usd(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount in USD: give a number such as 0.50")
    return value


def _service(options: argparse.Namespace, oracle: OracleLog) -> Service:
    fmt = load_format(options.format, load_tokenizer(options.weights))
    answerer, context = _answerer(options)
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
        require_key=options.require_key,
        seeds=Random(options.seed),
    )


def _answerer(options: argparse.Namespace) -> tuple[Answerer, int]:
    if options.pool is not None:
        return load_pool(options.pool), _context(options.weights)
    try:
        return local_answerer(options.weights, most=options.max_batch, threads=options.threads)
    except ImportError as error:
        message = f"{error.name} is not installed, and the model needs it"
        raise StartError(f"{message}. Install the dependency group 'torch', or answer from --pool FILE.") from None


def _context(weights: Path) -> int:
    try:
        return int(json.loads((weights / "config.json").read_bytes())["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise StartError(f"{weights / 'config.json'} names no context. Give it with --context N.") from None


def _open_oracle(path: Path | None) -> OracleLog:
    try:
        return OracleLog(path)
    except OSError as error:
        raise StartError(f"{path}: the oracle log cannot be written ({error.strerror})") from None


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to end; 0, or 2 where it cannot start."""
    # A signal while torch is still being imported is a plain end as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = _arguments().parse_args(arguments)
    try:
        _serve(options)
    except KeyboardInterrupt:
        return 0
    except (StartError, AnswererError, TokenizerError, FormatError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _serve(options: argparse.Namespace) -> None:
    try:
        from harness.emulator.app import create_app
        from harness.emulator.server import PortError, bind, say, serve
    except ImportError as error:
        message = f"{error.name} is not installed"
        raise StartError(f"{message}. Install the dependency group 'emulator'.") from None
    try:
        listener = bind(options.port)
    except PortError as error:
        raise StartError(str(error)) from None
    with listener, _open_oracle(options.oracle) as oracle:
        app = create_app(_service(options, oracle))
        serve(app, listener, lambda url: say(f"listening {url}"))


if __name__ == "__main__":
    sys.exit(main())
