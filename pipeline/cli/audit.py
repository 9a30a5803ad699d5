"""Count the features that a dataset's rows use.

    python -m pipeline audit SOURCE --dataset NAME

Guarantees: it reads only; a bad row is counted with its reason and is not fatal. Exit 1 where a worker was lost, 2 in
one sentence where the source cannot be read, has other columns, or gives no prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.base.screen import say, show, show_columns, show_json, show_json_lines
from pipeline.cli.options import positive
from pipeline.records import ToolMode

if TYPE_CHECKING:
    from pipeline.datasets.audit import Audit
    from pipeline.datasets.control_text import ControlText
    from pipeline.datasets.registry import Dataset

WORKER_LOST = 1
WHAT = 64
"""Characters that the table shows of what was found."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "audit", help="count the features that a dataset's rows use, and show the first of each"
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="JSON, JSON lines or Parquet: a file, folder, glob, or hub:REPO@COMMIT")
    add("--dataset", default="messages", metavar="NAME", help="B1 to B8, a variant, or messages (default)")
    add("--tools", choices=["raw", "structured"], help="how its tools travel (default: as the dataset says)")
    add(
        "--format",
        metavar="F",
        help="format whose control tokens are searched for (default: all whose vocabulary is here)",
    )
    add("--tokenizer", metavar="DIR", help="directory of that format's vocabulary, or hub:REPOSITORY@REVISION")
    add("--first", type=positive, default=3, metavar="N", help="rows shown for each feature (default 3)")
    add("--workers", type=positive, default=1, metavar="N", help="processes (default 1)")
    add("--rows", action="store_true", help="one line a row: its id and its features")
    add("--json", action="store_true", help="one JSON object on stdout; with --rows, one a row")
    parser.set_defaults(run=run_audit)


def run_audit(args: argparse.Namespace) -> int:
    """Audit the source and print the result."""
    from pipeline.base.processes import WorkerError
    from pipeline.datasets.audit import Audit, Auditor, audited_rows
    from pipeline.datasets.registry import dataset_named

    dataset = dataset_named(args.dataset)
    auditor = Auditor(dataset.name, ToolMode(args.tools) if args.tools else dataset.tools, _control_text(args))
    audit = Audit(auditor, args.first)
    try:
        for row in audited_rows(auditor, dataset, args.source, args.workers):
            audit.take(row)
            if args.rows:
                features = row.rejected or " ".join(sorted(row.found)) or "none"
                if args.json:
                    show_json_lines(row.line())
                else:
                    show_columns(row.id or "-", features)
    except WorkerError as error:
        say(f"error: {error}")
        return WORKER_LOST
    audit.check()
    if args.json and not args.rows:
        show_json(audit.document() | {"sha256": audit.sha256})
    elif not args.json:
        show(*_table(audit, dataset, args.source))
    return 0


def _control_text(args: argparse.Namespace) -> ControlText:
    from pipeline.datasets.control_text import spelled_at_hand, spelled_by
    from pipeline.formats.registry import FormatError, open_format

    if args.format is not None:
        return spelled_by(open_format(args.format, args.tokenizer))
    if args.tokenizer is not None:
        raise FormatError("a vocabulary is a format's: name it with --format F")
    return spelled_at_hand()


def _table(audit: Audit, dataset: Dataset, source: str) -> Iterator[str]:
    yield f"{dataset.name}, {dataset.title}: {source}"
    yield f"{audit.rows:>12,}  rows read"
    yield f"{audit.prompts:>12,}  prompts"
    for reason, number in audit.rejected.most_common():
        yield f"{number:>12,}  rejected: {reason}"
    yield ""
    yield from feature_table(audit.document())
    yield f"special_text: names of control tokens of {', '.join(audit.auditor.spelled.formats) or 'no format'}"
    yield f"tools travel {audit.auditor.tools}; audit {audit.sha256}"


def feature_table(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each feature, and its first rows."""
    yield f"{'rows':>12}  {'share':>7}  feature"
    for name, found in document["features"].items():
        yield f"{found['rows']:>12,}  {found['share']:>7.2%}  {name}"
        for first in found["first"]:
            place = f", {first['where']}" if first["where"] else ""
            what = first["what"] if len(first["what"]) <= WHAT else first["what"][:WHAT] + "…"
            yield f"{'':>23}row {first['row']}, {first['id']}: {what}{place}"
