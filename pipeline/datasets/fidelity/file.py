"""Hold a file of prompts to its source.

Guarantees: the source is read again, and each prompt is compared as it stands in the file. A prompt without a row, and
a line that is no prompt, is a difference. Memory does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.prompts import RefusedLine, read_prompts
from pipeline.datasets.conversation import text_of
from pipeline.datasets.fidelity.compare import compare_raw
from pipeline.datasets.registry import Dataset, Turns, gathered, outcomes_of
from pipeline.datasets.rows import Raw
from pipeline.datasets.sources import blocks_of
from pipeline.records import Prompt

FIRST = 10
"""Differences that are kept in words."""


@dataclass(slots=True)
class Checked:
    """How many prompts, turns and characters were compared.

    `first` holds the first differences of all.
    """

    prompts: int = 0
    turns: int = 0
    characters: int = 0
    differences: int = 0
    first: list[str] = field(default_factory=list)

    def differ(self, place: str, what: str) -> None:
        self.differences += 1
        if len(self.first) < FIRST:
            self.first.append(f"{place}: {what}")


def check_file(dataset: Dataset, source: Path | str, prompts: Path, turns: Turns = Turns.LAST) -> Checked:
    """Compare each prompt of a file with its row.

    `turns` is what the file was prepared with. Raises SourceError, OSError.
    """
    checked = Checked()
    rows = _rows(dataset, source, turns)
    for prompt in read_prompts(prompts):
        if isinstance(prompt, RefusedLine):
            checked.differ(f"{prompts}:{prompt.line}", f"no prompt: {prompt.refusal.detail}")
            continue
        raw = next((raw for raw, row_id in rows if row_id == prompt.id), None)
        if raw is None:
            checked.differ(prompt.id, "no row of the source, behind that of the prompt before it, has this id")
            break
        checked.prompts += 1
        checked.turns += len(prompt.messages)
        checked.characters += sum(len(text_of(message)) for message in prompt.messages)
        for what in compare_raw(dataset.name, raw, prompt).differences:
            checked.differ(f"{prompt.id}, {raw.file}:{raw.line}", what)
    return checked


def _rows(dataset: Dataset, source: Path | str, turns: Turns) -> Iterator[tuple[Raw, str]]:
    for block in gathered(dataset, blocks_of(source, dataset.schema)):
        for raw, outcome in outcomes_of(dataset, block, turns):
            if raw is not None and isinstance(outcome, Prompt):
                yield raw, outcome.id
