"""`python -m pipeline reconstruct` and `render`: JSON lines in, JSON lines out.

Guarantees: exit 0 when every line was answered, refused lines among them; 2 on unusable arguments, before any line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import BinaryIO

from pipeline.formats.registry import FORMATS, ROOT, open_format
from pipeline.offline import dumped, rebuilt, rendered
from pipeline.routes import committed_fingerprints, read_fingerprints


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The two verbs."""
    rebuild = subparsers.add_parser("reconstruct", help="API answers to proven token ids, JSON lines on stdin")
    _add_common(rebuild)
    rebuild.add_argument(
        "--fingerprint", type=Path, metavar="FILE", help="the route's traits; default: the committed ones"
    )
    rebuild.set_defaults(run=run_reconstruct)
    render = subparsers.add_parser("render", help="prompts to prompt ids, JSON lines on stdin")
    _add_common(render)
    render.set_defaults(run=run_render)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", required=True, metavar="NAME", help=", ".join(sorted(FORMATS)))
    parser.add_argument("--tokenizer", metavar="DIR", help="directory with tiktoken.model, or hub:REPOSITORY@REVISION")


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
    sys.stdout.buffer.writelines(dumped(rebuilt(_stdin(), fmt, known)))
    sys.stdout.buffer.flush()
    return 0


def run_render(args: argparse.Namespace) -> int:
    """Renders every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    sys.stdout.buffer.writelines(dumped(rendered(_stdin(), fmt)))
    sys.stdout.buffer.flush()
    return 0
