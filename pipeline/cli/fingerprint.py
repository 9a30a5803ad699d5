"""Learn what routes do to text from recorded exchanges.

    python -m pipeline fingerprint EXCHANGES.jsonl --tokenizer FORMAT=DIR

Guarantees: stdout has the traits alone; stderr accounts for each line of the file, with the reason where nothing was
learned from it. Exit 0 where something was learned, 1 where nothing was, 2 on unusable arguments.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base.json_lines import line_of
from pipeline.base.screen import say, show_json_lines, show_table
from pipeline.fingerprints.harvest import harvest_of_file
from pipeline.fingerprints.learn import LearnedFingerprint, learn
from pipeline.fingerprints.models import formats_on
from pipeline.fingerprints.votes import Learned
from pipeline.formats.registry import FORMATS, FormatError, open_format

NOTHING = 1
WIDTH = 200
"""Of a table that goes to no terminal, which may be narrower than its widest cell."""
HEADER = ("provider", "model", "form", "trait", "value", "n", "proven", "what speaks against it, or lacks")
MOST_SHOWN = 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("fingerprint", help="learn what routes do to text from recorded exchanges")
    parser.add_argument(
        "exchanges", type=Path, metavar="EXCHANGES.jsonl", help="one request and its answer in each line"
    )
    parser.add_argument(
        "--tokenizer",
        type=named_directory,
        action="append",
        required=True,
        metavar="FORMAT=DIR",
        help=f"a format's vocabulary; may be repeated; formats: {', '.join(sorted(FORMATS))}",
    )
    parser.add_argument("--json", action="store_true", help="one trait a line, as in a fingerprint file")
    parser.set_defaults(run=run_fingerprint)


def named_directory(text: str) -> tuple[str, str]:
    """Parse `FORMAT=DIR`. Raises argparse.ArgumentTypeError."""
    name, equals, directory = text.partition("=")
    if not (name and equals and directory):
        raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT=DIR")
    return name, directory


def run_fingerprint(args: argparse.Namespace) -> int:
    """Learn from the file and print.

    Raises ExchangesError, FormatError, TokenizerError.
    """
    names = [name for name, _ in args.tokenizer]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FormatError(f"--tokenizer names {twice} twice. Name each format once.")
    formats = {name: open_format(name, directory) for name, directory in args.tokenizer}
    found = harvest_of_file(args.exchanges, formats_on(formats))
    learned = learn(found)
    if args.json:
        show_json_lines(b"".join(line_of(line) for one in learned for line in one.lines()))
    elif learned:
        show_table([*_cells(learned)], HEADER, width=WIDTH)
    say(*found.said())
    return 0 if learned else NOTHING


def _cells(learned: Sequence[LearnedFingerprint]) -> Iterator[tuple[str, ...]]:
    """Yield the traits as rows of a table."""
    for one in learned:
        provider, model, stream = one.route
        for name, trait in one.traits.items():
            form = "stream" if stream else "json"
            value, proven = json.dumps(trait.value), "yes" if trait.trait.proven else "no"
            yield provider, model, form, str(name), value, str(trait.trait.n), proven, against(trait)


def against(learned: Learned) -> str:
    """Return what the proof lacks, and the first dissenters."""
    dissent = []
    for ballot in learned.against[:MOST_SHOWN]:
        value = "" if ballot.value is None else f"{json.dumps(ballot.value)} "
        dissent.append(f"{ballot.id} {value}({ballot.why})")
    if (more := len(learned.against) - MOST_SHOWN) > 0:
        dissent.append(f"{more} more")
    return "; ".join((*learned.lacks, *dissent))
