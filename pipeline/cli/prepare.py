"""Turn a dataset's rows into prompts; print the datasets' pages.

    python -m pipeline prepare SOURCE --dataset NAME --out FILE [--check]
    python -m pipeline datasets

Guarantees: the files that `prepare` writes are whole or not there, whatever stopped it. A row that is not taken stands
in the second with its reason, and what a prompt leaves out of its row or decodes in the third. `--check` reads source
and prompts again and compares them turn by turn; a difference is exit 1. Decontamination is on unless it is switched
off by name: where no evaluation prompts are named, it refuses instead of going without. docs/datasets.md is made from
the registry and nothing else.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from pipeline.base.screen import show, show_json, show_text
from pipeline.cli.options import ArgumentsError, positive
from pipeline.datasets.decontaminate import LONG, SHORT, asked_in, grams_of
from pipeline.datasets.fidelity.comparison import CHANGES, Change
from pipeline.datasets.fidelity.file import Checked, check_file
from pipeline.datasets.registry import DATASETS, Dataset, Turns, dataset_named
from pipeline.datasets.rows import MEANINGS, Reject
from pipeline.datasets.sources import files_of
from pipeline.records import Json

if TYPE_CHECKING:
    from pipeline.datasets.decontaminate import NGrams
    from pipeline.datasets.prepare import Counts, TargetFormat


EVALSETS = "DRAFTER_GATE_EVALSETS"
OUT = "prompts.jsonl"
DIFFERENT = 1


@dataclass(frozen=True, slots=True)
class Evaluations:
    """What prompts are compared with; nothing if switched off."""

    grams: NGrams | None = None
    texts: int = 0
    silent: tuple[str, ...] = ()


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verbs `prepare` and `datasets`."""
    what = "print every dataset's page: schema, licence, what is dropped and why"
    subparsers.add_parser("datasets", help=what).set_defaults(run=run_pages)
    what = "turn a dataset's rows into prompts, with a reason for each row left out"
    parser = subparsers.add_parser("prepare", help=what)
    add_files(parser)
    add_filters(parser)
    parser.set_defaults(run=run_prepare)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add what is read and written."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="JSON, JSON lines or Parquet: a file, folder, glob, or hub:REPO@COMMIT")
    dataset = "B1 to B8, a variant, or messages: `python -m pipeline datasets`"
    add("--dataset", required=True, metavar="NAME", help=dataset)
    out = f"file for the prompts, such as {OUT}; replaced as a whole"
    add("--out", type=Path, required=True, metavar="FILE", help=out)
    rejects = "file for rejected rows (default: rejects.jsonl beside prompts.jsonl)"
    add("--rejects", type=Path, metavar="FILE", help=rejects)
    add(
        "--check", action="store_true", help="compare what was written with the source, turn by turn; exit 1 if unequal"
    )
    add("--workers", type=positive, default=1, metavar="N", help="processes (default 1)")
    add("--json", action="store_true", help="one JSON object on stdout instead of the table")


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add which prompts are taken."""
    add = parser.add_argument
    add("--format", metavar="F", help="the target: prompts must render in its template and spell none of its tokens")
    add("--tokenizer", metavar="DIR", help="directory of its vocabulary, or hub:REPOSITORY@REVISION")
    longest = "longest prompt in the target's tokens; whole turns are cut"
    add("--max-tokens-prompt", type=positive, metavar="N", help=longest)
    turns = "questions of a row that become prompts: its last (default), or all, each with the history before it"
    add("--turns", choices=[*Turns], default=Turns.LAST, help=turns)
    cap = "most rows that may begin with the same user turn (default: the dataset's; 0: any)"
    add("--cap-first-turn", type=int, metavar="K", help=cap)
    add("--limit", type=positive, metavar="N", help="draw N of the prompts that are left")
    seed = "seed of the draw, which also depends on the rows' ids (default 0)"
    add("--seed", type=int, default=0, metavar="S", help=seed)
    evaluations = parser.add_mutually_exclusive_group()
    folder = f"folder of evaluation prompts (default: ${EVALSETS})"
    evaluations.add_argument("--decontaminate", type=Path, metavar="DIR", help=folder)
    evaluations.add_argument("--no-decontaminate", action="store_true", help="keep prompts that evaluations ask too")


@dataclass(frozen=True, slots=True)
class Places:
    """Where prompts, rejected rows and changes are written."""

    out: Path
    rejects: Path
    changes: Path


def run_prepare(args: argparse.Namespace) -> int:
    """Prepare, and print what became of the rows."""
    from pipeline.datasets.prepare import Preparation, RowFilter, Selection, beside

    dataset, turns = dataset_named(args.dataset), Turns(args.turns)
    places = Places(args.out, args.rejects or beside(args.out, "rejects"), beside(args.out, "changes"))
    _check_places(args.source, places)
    evaluations = _evaluations(args)
    row_filter = RowFilter(dataset, _target(args), evaluations.grams, turns)
    cap = dataset.cap if args.cap_first_turn is None else max(args.cap_first_turn, 0) or None
    preparation = Preparation(row_filter, Selection(cap, args.limit, args.seed), args.workers)
    counts = preparation.write(args.source, places.out, places.rejects, places.changes)
    checked = check_file(dataset, args.source, places.out, turns) if args.check else None
    if args.json:
        show_json(_document(args, counts, evaluations, places, checked))
    else:
        lines = [*_table(args, dataset, counts, places), *_compared(evaluations), *_checked(checked)]
        show(*lines)
    return DIFFERENT if checked and checked.differences else 0


def _document(
    args: argparse.Namespace, counts: Counts, evaluations: Evaluations, places: Places, checked: Checked | None
) -> dict[str, Json]:
    """Return the counts as one object."""
    found: dict[str, Json] = {
        "dataset": args.dataset,
        "turns": str(args.turns),
        "rows": counts.rows,
        "more_questions": counts.more,
        "prompts": counts.prompts,
        "rejected": {str(reason): number for reason, number in counts.rejected.most_common()},
        "changed": {str(change): number for change, number in counts.changes.most_common()},
        "evaluation_texts": evaluations.texts if evaluations.grams else None,
        "evaluation_files_without_prompts": list(evaluations.silent),
        "out": str(places.out),
        "rejects": str(places.rejects),
        "changes": str(places.changes),
    }
    return found | ({"checked": asdict(checked)} if checked else {})


def _check_places(source: str, places: Places) -> None:
    """Refuse output files that cannot be written. Raises ArgumentsError."""
    written = (places.out, places.rejects, places.changes)
    for path in written:
        if path.is_dir():
            raise ArgumentsError(f"{path} is a folder: give a file, such as {path / OUT}")
        if not path.parent.is_dir():
            raise ArgumentsError(f"{path.parent} is no folder. Make it, or give a file in another with --out FILE")
    if len({path.resolve() for path in written}) < len(written):
        held = "prompts, rejected rows and changes"
        raise ArgumentsError(f"one file cannot hold both of {held}: give another file with --rejects FILE")
    read = set() if source.startswith("hub:") else {path.resolve() for path in files_of(source)}
    if taken := read & {path.resolve() for path in written}:
        raise ArgumentsError(f"{taken.pop()} is read as a part of {source}: write to a file outside of it")


def _target(args: argparse.Namespace) -> TargetFormat | None:
    """Return the target whose limits hold, if one is named."""
    if args.format is None:
        if args.max_tokens_prompt is not None or args.tokenizer is not None:
            raise ArgumentsError("tokens are those of a target: name its format with --format F")
        return None
    from pipeline.datasets.prepare import TargetFormat
    from pipeline.formats.registry import open_format

    return TargetFormat(open_format(args.format, args.tokenizer), args.max_tokens_prompt)


def _evaluations(args: argparse.Namespace) -> Evaluations:
    """Read the evaluation prompts, unless switched off.

    Raises ArgumentsError, SourceError.
    """
    if args.no_decontaminate:
        return Evaluations()
    folder = args.decontaminate or (Path(os.environ[EVALSETS]) if os.environ.get(EVALSETS) else None)
    if folder is None:
        what = "a drafter is measured on prompts that its training must not have seen, and none are named"
        mend = f"Name their folder with --decontaminate DIR or ${EVALSETS}, or go without: --no-decontaminate"
        raise ArgumentsError(f"{what}. {mend}")
    texts, silent = asked_in(folder)
    return Evaluations(grams_of(texts), len(texts), tuple(silent))


def _table(args: argparse.Namespace, dataset: Dataset, counts: Counts, places: Places) -> Iterator[str]:
    yield f"{dataset.name}, {dataset.title}: {args.source}"
    yield f"{counts.rows:>12,}  rows read"
    if args.turns == Turns.ALL:
        yield f"{counts.more:>12,}  more questions of these rows (--turns all)"
    yield f"{counts.prompts:>12,}  prompts, in {places.out}"
    yield f"{counts.rejected.total():>12,}  rejected, in {places.rejects}"
    for reason, number in counts.rejected.most_common():
        yield f"{number:>12,}  {reason}: {MEANINGS[reason]}"
    yield f"what prompts leave out of their rows, or decode, one line a prompt: {places.changes}"
    for change, number in counts.changes.most_common():
        yield f"{number:>12,}  {change}: {CHANGES[change]}"
    if args.turns == Turns.LAST:
        yield "one question a row was asked (--turns last); --turns all asks each, with the history before it"


def _compared(evaluations: Evaluations) -> Iterator[str]:
    if evaluations.grams is None:
        yield "not compared with any evaluation prompts (--no-decontaminate)"
    else:
        yield f"compared with {evaluations.texts:,} evaluation texts: runs of {LONG} words, {SHORT} in code"
    if evaluations.silent:
        files = shorten(", ".join(evaluations.silent), 200, placeholder=" …")
        yield f"no evaluation prompt was found in {len(evaluations.silent)} files: {files}"


def _checked(checked: Checked | None) -> Iterator[str]:
    if checked is not None:
        compared = f"{checked.prompts:,} prompts, {checked.turns:,} turns, {checked.characters:,} characters"
        yield f"checked against the source: {compared}; {checked.differences:,} differences"
        yield from checked.first


def run_pages(_: argparse.Namespace) -> int:
    """Print docs/datasets.md."""
    show_text(document())
    return 0


HEAD = f"""# Datasets

Each dataset's rows become prompts by an adapter that knows its published schema. A prompt ends on a turn that waits for
an answer; recorded answers in between are its history, and the recorded answer after it is left out, since the target
gives its own. Where a conversation cannot be kept as it is (an empty turn, an answer to an answer), it ends before
that. Text is never reworded: what is dropped, and why, is said below.

`python -m pipeline prepare SOURCE --dataset NAME --out prompts.jsonl` holds each row to the same rules, in this order:
the target's template renders it and it spells none of the target's control tokens (`--format`); whole turns are cut
from its end until it fits (`--max-tokens-prompt`); it shares no run of {LONG} words with an evaluation prompt, or of
{SHORT} where that prompt is code, and equals none of its turns (`--decontaminate`); no earlier row has its id, or
asks the same (all turns, tools and thinking, but for case and white space in turns); no more than a cap of rows begin
alike (`--cap-first-turn`); it is drawn (`--limit`, `--seed`). Rows in are prompts out and rejected rows, and each
rejected row is kept with its reason.

One question of a row is asked: its last, or one that is drawn where a dataset's page says so. With `--turns all`, each
is a prompt with the history before it. The one that would be asked alone keeps the row's id; the others add `#` and
their number. The cap counts rows.

What a prompt leaves out of its row, or decodes, stands in `changes.jsonl` beside the prompts, one line a prompt: `id`,
`file`, `line`, and `changes` (`change`, `what`). Each prompt is held to its row by other code than the adapter's, and
one that differs in another way is rejected. `--check` reads source and prompts once more and compares what was written.

A hub's dataset is streamed anew each time it is read, and `generate` reads its source three times: to count it, to
audit it and to ask. Prepare it first, which reads it once, and give `generate` the file.

Written by `python -m pipeline datasets`; a test holds the two equal.
"""


def document() -> str:
    """Return the datasets' pages, in Markdown."""
    if unequal := set(Reject) ^ set(MEANINGS):
        raise ValueError(f"no meaning, or a meaning without a reason: {', '.join(sorted(unequal))}")
    reasons = _listing("Reasons for which a row gives no prompt", "reason", MEANINGS)
    changes = _listing("Changes that are stated", "change", CHANGES)
    pages = (
        f"\n## {dataset.name}: {dataset.title}\n\n{dataset.page}\n\n"
        + "".join(f"- {fact}\n" for fact in facts_of(dataset))
        for dataset in DATASETS.values()
    )
    return HEAD + reasons + changes + "".join(pages)


def _listing(title: str, what: str, meanings: Mapping[Reject, str] | Mapping[Change, str]) -> str:
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in meanings.items())
    return f"\n## {title}\n\n| {what} | meaning |\n|---|---|\n{rows}"


def facts_of(dataset: Dataset) -> Iterator[str]:
    """Yield what a dataset's page lists."""
    yield f"Licence: {dataset.licence}"
    if dataset.revision:
        yield f"Revision looked at: `{dataset.revision}`"
    if dataset.columns:
        yield f"Columns a source must have: {_listed(dataset.columns)}"
    if dataset.more:
        yield f"Columns read where they are there: {_listed(dataset.more)}"
    yield f"Tools go out: {dataset.tools}"
    if dataset.defaults:
        yield f"Every prompt counts as having: {_listed(dataset.defaults)}"
    if dataset.cap is not None:
        yield f"Rows that may begin alike: {dataset.cap}"


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
