"""Read rows or prepared prompts as a run's lines.

Guarantees: every row of the source is one Prompt or one RefusedLine. Rows are counted from 1 over all files, so a row
keeps its line wherever the files lie. Raises SourceError for a prepared prompt that names another dataset: its tools
would be sent, and audited, as those of the wrong one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.base.file_kinds import BYTE_ORDER_MARK
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
    """Yield every row, in order. Raises SourceError."""
    if is_prepared(source):
        for line in read_prompts(source):
            yield line if isinstance(line, RefusedLine) else _of_dataset(line, dataset)
        return
    for number, row in enumerate(prompts_of(dataset, str(source)), start=1):
        if isinstance(row, Rejected):
            detail = f"{row.reason}: {row.detail} ({Path(row.file).name}, record {row.line})"
            yield RefusedLine(row.file, number, Refusal(Reason.NO_PROMPT, detail, field="row"), row.id)
        else:
            yield row


def is_prepared(source: Path) -> bool:
    """Whether the file holds prompts as `prepare` writes them.

    No dataset publishes rows in that schema.
    """
    if not source.is_file():
        return False
    with source.open("rb") as file:
        if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            file.seek(0)
        line = next((line for line in iter(lambda: file.readline(LONGEST_LINE), b"") if line.strip()), b"")
    try:
        prompt_of(strict_object(line))
    except RefusedError:
        return False
    return True


def size_of(dataset: str, source: Path) -> tuple[str, int]:
    """Return the source's digest, and its number of rows.

    The digest is of what the files hold, whatever they are called. Raises SourceError, OSError.
    """
    schema = dataset_named(dataset).schema
    rows = sum(map(count_of, blocks_of(str(source), schema)))
    if str(source).startswith(HUB):
        return hashlib.sha256(str(source).encode()).hexdigest(), rows
    digest = hashlib.sha256()
    for path in files_of(str(source)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest(), rows


def _of_dataset(prompt: Prompt, dataset: str) -> Prompt:
    """Return the prompt with its dataset. Raises SourceError."""
    if not prompt.dataset:
        return replace(prompt, dataset=dataset)
    if dataset != MESSAGES and _family(prompt.dataset) != _family(dataset):
        raise SourceError(
            f"row {prompt.id} says that it is of {prompt.dataset}, not of {dataset}. Name its own with --dataset"
        )
    return prompt


def _family(dataset: str) -> str:
    return dataset.partition("-")[0]
