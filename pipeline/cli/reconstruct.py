"""`python -m pipeline reconstruct` and `render`: JSON lines in, JSON lines out.

Guarantees: exit 0 when every line was answered, refused lines among them; 2 on unusable arguments, before any line; 1
where a worker process was lost, and with it the answers that were still due.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import orjson

from pipeline.base.processes import Work, WorkerError, spread
from pipeline.cli.offline import dumped, rebuilt, rendered
from pipeline.formats.registry import FORMATS, ROOT, open_format
from pipeline.proof.fingerprint import committed_fingerprints, read_fingerprints
from pipeline.proof.oracle import OracleTally

WORKER_LOST = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The two verbs."""
    rebuild = subparsers.add_parser("reconstruct", help="API answers to proven token ids, JSON lines on stdin")
    _add_common(rebuild)
    rebuild.add_argument(
        "--fingerprint", type=Path, metavar="FILE", help="the route's traits; default: the committed ones"
    )
    rebuild.add_argument(
        "--oracle", action="store_true", help="where ids were returned, say how our rebuild from text compares"
    )
    rebuild.set_defaults(run=run_reconstruct)
    render = subparsers.add_parser("render", help="prompts to prompt ids, JSON lines on stdin")
    _add_common(render)
    render.set_defaults(run=run_render)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", required=True, metavar="NAME", help=", ".join(sorted(FORMATS)))
    parser.add_argument("--workers", type=_workers, default=1, metavar="N", help="processes; default: 1, this one")
    parser.add_argument("--tokenizer", metavar="DIR", help="directory of the vocabulary, or hub:REPOSITORY@REVISION")


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; 1 is this one alone")
    return int(text)


class StdinError(Exception):
    """There is nothing to read from."""


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise StdinError("stdin is closed. Give the lines with `< FILE`.")
    return sys.stdin.buffer


def run_reconstruct(args: argparse.Namespace) -> int:
    """Answers every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    known = read_fingerprints(args.fingerprint) if args.fingerprint else committed_fingerprints(ROOT)

    def work(lines: Iterable[bytes], first: int) -> Iterable[bytes]:
        return dumped(rebuilt(lines, fmt, known, oracle=args.oracle, first=first))

    if not args.oracle:
        return _answer(work, args.workers)
    tally = OracleTally()
    status = _answer(work, args.workers, tally)
    sys.stderr.write(tally.line() + "\n")
    return status


def run_render(args: argparse.Namespace) -> int:
    """Renders every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    return _answer(lambda lines, first: dumped(rendered(lines, fmt, first=first)), args.workers)


def _answer(work: Work, workers: int, tally: OracleTally | None = None) -> int:
    """Every line of stdin to stdout; the exit status."""
    status = 0
    with closing(spread(_stdin(), work, workers)) as results:
        try:
            for result in results:
                if tally is not None:
                    tally.note(orjson.loads(line) for line in result.splitlines())
                sys.stdout.buffer.write(result)
        except WorkerError as error:
            sys.stderr.write(f"error: {error}\n")
            status = WORKER_LOST
    sys.stdout.buffer.flush()
    return status
