"""docs/datasets.md, made from the registry and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.datasets.decontaminate import LONG, SHORT
from pipeline.datasets.registry import DATASETS, Dataset
from pipeline.datasets.rows import MEANINGS, Reject

HEAD = f"""# Datasets

Each dataset's rows become prompts by an adapter that knows its published schema. A prompt ends on a turn that waits for
an answer; recorded answers in between are its history, and the recorded answer after it is left out, since the target
gives its own. Where a conversation cannot be kept as it is (an empty turn, an answer to an answer), it ends before
that. Text is never reworded: what is dropped, and why, is said below.

`python -m pipeline prepare SOURCE --dataset NAME --out prompts.jsonl` holds each row to the same rules, in this order:
the target's template renders it and it spells none of the target's control tokens (`--format`); whole turns are cut
from its end until it fits (`--max-tokens-prompt`); it shares no run of {LONG} words with an evaluation prompt, or of
{SHORT} where that prompt is code, and equals none of its turns (`--decontaminate`); no earlier row has its id, or
asks the same (user turns and tools, but for case and white space); no more than a cap of rows begin alike
(`--cap-first-turn`); it is drawn (`--limit`, `--seed`). Rows in are prompts out and rejected rows, and each rejected
row is kept with its reason.

A hub's dataset is streamed anew each time it is read, and `generate` reads its source three times: to count it, to
audit it and to ask. Prepare it first, which reads it once, and give `generate` the file.

Written by `python -m pipeline datasets`; a test holds the two equal.

## Reasons for which a row gives no prompt

| reason | meaning |
|---|---|
"""


def document() -> str:
    """The whole document, Markdown."""
    if unequal := set(Reject) ^ set(MEANINGS):
        raise ValueError(f"no meaning, or a meaning without a reason: {', '.join(sorted(unequal))}")
    reasons = "".join(f"| `{reason}` | {MEANINGS[reason]} |\n" for reason in Reject)
    return HEAD + reasons + "".join(f"\n{text}" for text in map(_page, DATASETS.values()))


def _page(dataset: Dataset) -> str:
    return f"## {dataset.name}: {dataset.title}\n\n{dataset.page}\n\n" + "".join(
        f"- {fact}\n" for fact in _facts(dataset)
    )


def _facts(dataset: Dataset) -> Iterator[str]:
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
