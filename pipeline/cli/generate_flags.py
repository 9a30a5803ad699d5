"""The flags of `python -m pipeline generate`, by what they are about.

Guarantees: what is no value of a flag is refused by argparse, with the values that are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from pipeline.cli.options import positive, usd
from pipeline.formats.registry import FORMATS
from pipeline.generation.breaker import CANARIES, LIMITS, Sign

TINY_MODEL, TINY_FORMAT, DEFAULT_FORMAT = "drafter-gate/tiny-kimi", "tiny-kimi", "kimi-k2.5"

CAPS: Mapping[str, str] = {
    "budget-tokens": "tokens in this run, all sessions together",
    "budget-requests": "requests in this run, all sessions together",
    "day-usd": "dollars a UTC day, over all runs of this checkout through the same API",
    "day-tokens": "tokens a UTC day, over all such runs",
    "day-requests": "requests a UTC day, over all such runs",
}
"""The caps beside --budget-usd, by their flags."""


def add_source(parser: argparse.ArgumentParser) -> None:
    """What is asked, of whom, and where it goes."""
    add = parser.add_argument
    add("--prompts", type=Path, required=True, metavar="SOURCE", help="JSON lines of id, messages, tools?, thinking?")
    add("--dataset", metavar="NAME", help="--prompts holds its rows, as published or as `prepare` wrote them")
    add("--only-covered", action="store_true", help="set aside the rows that use what no contract covers")
    add("--route", required=True, help="emulator/PROVIDER, openrouter/PROVIDER, local, sglang or vllm")
    add("--out", type=Path, required=True, metavar="DIR", help="shards, quarantine and manifest; begun or gone on with")
    add("--model", help=f"the model's slug (default, but for openrouter: {TINY_MODEL})")
    add("--format", help=f"{', '.join(sorted(FORMATS))} (default: {DEFAULT_FORMAT}, {TINY_FORMAT} for the tiny target)")
    add("--tokenizer", metavar="DIR", help="directory of the vocabulary, or hub:REPOSITORY@REVISION")
    add("--weights", type=Path, metavar="DIR", help="the local route's model (default: the tiny target)")
    add("--base-url", metavar="URL", help="where the emulator or the engine listens; loopback only")
    add("--limit", type=positive, metavar="N", help="only the first N rows of the file")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")


def add_request(parser: argparse.ArgumentParser) -> None:
    """What each request says."""
    add, either = parser.add_argument, argparse.BooleanOptionalAction
    add("--stream", action=either, help="ask for a stream or one body (default: what proves more)")
    add("--tools", choices=["raw", "structured"], help="declared in the prompt, or as `tools` (default: the dataset's)")
    add("--max-tokens", type=positive, default=256, metavar="N", help="longest answer (default 256)")
    add("--temperature", type=_temperature, default=1.0, metavar="T", help="0 to 2 (default 1)")
    add("--seed", type=int, metavar="S", help="each row's own seed is drawn from it")
    add("--logprobs", action="store_true", help="ask for logprobs, where the endpoint has them")
    add("--return-token-ids", action="store_true", help="ask for the ids themselves, where the engine returns them")
    add("--data-collection", choices=["deny", "allow"], default="deny", help="whether a provider may keep prompts")
    add("--zdr", action="store_true", help="only endpoints that retain nothing")
    distillable = "only models whose authors allow that others train on their text (default)"
    add("--distillable", action=either, default=True, help=distillable)


def add_money(parser: argparse.ArgumentParser) -> None:
    """What a run may use."""
    add = parser.add_argument
    add("--budget-usd", type=usd, required=True, metavar="N", help="the most this run may cost, all sessions together")
    for name, what in CAPS.items():
        add(f"--{name}", type=usd if name.endswith("usd") else positive, metavar="N", help=f"at most so many {what}")
    resend = "ask again what was sent and never answered: it may be paid twice"
    add("--resend-unknown", action="store_true", help=resend)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """How fast it goes, and what stops it."""
    add = parser.add_argument
    add("--concurrency", type=positive, default=16, metavar="N", help="requests in flight, or the local batch")
    add("--attempts", type=positive, default=6, metavar="N", help="tries of a request that is turned away (default 6)")
    add("--canaries", type=positive, default=CANARIES, metavar="N", help=f"rows judged first (default {CANARIES})")
    add("--trip", type=_limit, action="append", default=[], metavar="SIGN=SHARE", help=f"another limit: {_limits()}")
    add("--resume", action="store_true", help="go on with a run that the breaker paused; it is judged again")
    accepted = f"go on and do not stop for this sign: {', '.join(Sign)}"
    add("--accept-trip", type=_sign, action="append", default=[], metavar="SIGN", help=accepted)


def _sign(text: str) -> Sign:
    try:
        return Sign(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no sign: there are {', '.join(Sign)}") from None


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:  # noqa: PLR2004 - the range that the API documents
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature: give a number from 0 to 2")
    return value


def _limits() -> str:
    return ", ".join(f"{sign}={limit:g}" for sign, limit in LIMITS.items())


def _limit(text: str) -> tuple[Sign, float]:
    name, _, number = text.partition("=")
    try:
        sign, limit = Sign(name), float(number)
    except ValueError:
        limit = -1.0
    most = math.inf if name == Sign.COST else 1.0
    if name == Sign.BUDGET or not 0 <= limit <= most or limit == math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no limit: give SIGN=SHARE, as in {_limits()}")
    return sign, limit
