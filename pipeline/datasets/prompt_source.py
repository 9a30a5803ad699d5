"""A dataset's rows as the lines of a run: its published rows adapted as they are read, or prompts prepared before.

Guarantees: every row of the source is one Prompt or one RefusedLine, which counts rows from 1 over all files, so that a
row keeps its line wherever the files lie. Refuses a prepared prompt that says that it is another dataset's: its tools
would travel, and be audited, as those of the wrong one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.base.json_lines import LONGEST_LINE, strict_object
from pipeline.base.prompts import RefusedLine, prompt_of, read_prompts
from pipeline.datasets.adapters.messages import NAME as MESSAGES
from pipeline.datasets.blocks import count_of
from pipeline.datasets.registry import dataset_named, prompts_of
from pipeline.datasets.rows import Rejected
from pipeline.datasets.sources import SourceError, blocks_of, files_of
from pipeline.records import Prompt, Reason, Refusal, RefusedError

HUB = "hub:"


def lines_of(dataset: str, source: Path) -> Iterator[Prompt | RefusedLine]:
    """Every row, in order. Raises SourceError."""
    if is_prepared(source):
        for line in read_prompts(source):
            yield line if isinstance(line, RefusedLine) else _of(dataset, line)
        return
    for number, row in enumerate(prompts_of(dataset, str(source)), start=1):
        yield _refused(row, number) if isinstance(row, Rejected) else row


def is_prepared(source: Path) -> bool:
    """Whether the file holds prompts in the schema that `prepare` writes; no dataset publishes rows in it."""
    if not source.is_file():
        return False
    with source.open("rb") as file:
        line = next((line for line in iter(lambda: file.readline(LONGEST_LINE), b"") if line.strip()), b"")
    try:
        prompt_of(strict_object(line))
    except RefusedError:
        return False
    return True


def size_of(dataset: str, source: Path) -> tuple[str, int]:
    """A digest of what the source holds, whatever its files are called, and its rows. Raises SourceError, OSError."""
    schema = dataset_named(dataset).schema
    rows = sum(map(count_of, blocks_of(str(source), schema)))
    if str(source).startswith(HUB):
        return hashlib.sha256(str(source).encode()).hexdigest(), rows
    digest = hashlib.sha256()
    for path in files_of(str(source)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest(), rows


def _of(dataset: str, prompt: Prompt) -> Prompt:
    if not prompt.dataset:
        return replace(prompt, dataset=dataset)
    if dataset != MESSAGES and _family(prompt.dataset) != _family(dataset):
        raise SourceError(
            f"row {prompt.id} says that it is of {prompt.dataset}, not of {dataset}. Name its own with --dataset"
        )
    return prompt


def _family(dataset: str) -> str:
    return dataset.partition("-")[0]


def _refused(row: Rejected, number: int) -> RefusedLine:
    detail = f"{row.reason}: {row.detail} ({Path(row.file).name}, record {row.line})"
    return RefusedLine(row.file, number, Refusal(Reason.NO_PROMPT, detail, field="row"), row.id)
