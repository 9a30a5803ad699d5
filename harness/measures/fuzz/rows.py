"""Mutated dataset rows, and whether their text was kept.

Guarantees: rows go through a dataset's adapter as they do in `prepare`, from lines of a file to prompts, joined where
their ids say so, with every question asked. A prompt is held to its row by `pipeline.datasets.fidelity`, and, by code
that shares nothing with either, each text of a turn must stand as it is in some string of the rows. Every row must come
out as prompts or as one rejected row.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from harness.fixtures.published_rows import ROWS
from harness.measures.dataset_speed import SCHEMAS
from harness.measures.fuzz.mutants import Material, edit, spoil, written
from pipeline.base.json_lines import object_of
from pipeline.datasets.blocks import LinesBlock, count_of
from pipeline.datasets.prepare import Candidate, RowFilter
from pipeline.datasets.registry import DATASETS, Turns, gathered
from pipeline.datasets.rows import Reject
from pipeline.records import Json

FOLDERS: Mapping[str, tuple[str, ...]] = {
    "B1": ("B1_Glaive/*raw", "synthetic/B1*"),
    "B1-llamafactory": ("B1_Glaive/*demo",),
    "B2": ("synthetic/B2*",),
    "B3": ("B3*/*", "synthetic/B3*"),
    "B4": ("B4*/*", "synthetic/B4*"),
    "B5": ("B5*/*", "synthetic/B5*"),
    "B6": ("B6*/*", "synthetic/B6*"),
    "B7": ("B7*/*", "synthetic/B7*"),
    "B8": ("B8*/*", "synthetic/B8*"),
}
"""Files of each dataset in `$DRAFTER_GATE_SHARED`."""
MADE = 4
"""Rows that are made of each schema that `dataset-speed` knows."""
MOST_BYTES = 30_000
PLAIN = Material(None, ("<|im_end|>", "<|im_start|>", "ASSISTANT:", "USER:", "<|endoftext|>", "<functioncall>"))


def names() -> list[str]:
    """Return the datasets with rows of their own here."""
    return sorted({name for name, _, _ in ROWS})


def seed_rows(dataset: str) -> list[dict[str, Any]]:
    """Return the rows that are mutated, in one order."""
    found: list[dict[str, Any]] = [row for name, row, _ in ROWS if name == dataset]
    if make := SCHEMAS.get(dataset):
        found += [make(Random(number), number) for number in range(MADE)]
    return [*found, *_shared(dataset)]


def _shared(dataset: str) -> Iterator[dict[str, Any]]:
    if not (given := os.environ.get("DRAFTER_GATE_SHARED")):
        return
    for pattern in FOLDERS.get(dataset, ()):
        for path in sorted((Path(given) / "datasets").glob(f"{pattern}.jsonl")):
            yield from (json.loads(line) for line in path.read_bytes().splitlines() if len(line) <= MOST_BYTES)


class MutatedRows:
    """Cases of one dataset's mutated rows, each by its number."""

    def __init__(self, dataset: str, seed: int) -> None:
        self.filter = RowFilter(DATASETS[dataset], turns=Turns.ALL)
        self.seeds = seed_rows(dataset)
        self.seed = seed
        self.digest = hashlib.sha256(json.dumps(self.seeds).encode()).hexdigest()[:16]

    def drawn(self, number: int) -> tuple[bytes, ...]:
        """Return the lines of a case, one mutated at least."""
        rng = Random(f"{self.seed}:{self.filter.dataset.name}:{number}")
        return tuple(
            line(rng.choice(self.seeds), rng, rounds) for rounds in rng.choice(((1,), (2,), (3,), (1, 0), (0, 1, 1)))
        )

    def case(self, number: int) -> tuple[str, str]:
        """Return a case's outcome, and what is wrong with it."""
        lines = self.drawn(number)
        block = LinesBlock("rows.jsonl", 1, lines)
        answers = [self.filter.answers(one) for one in gathered(self.filter.dataset, [block])]
        found = [one for answer in answers for one in answer.found]
        if count_of(block) + sum(answer.more for answer in answers) != len(found):
            return "lost", f"{count_of(block)} rows gave {len(found)} outcomes"
        outcomes = ["prompt" if isinstance(one, Candidate) else str(one.reason) for one in found]
        faults = [one.detail for one in found if not isinstance(one, Candidate) and one.reason is Reject.UNFAITHFUL]
        prompts = [object_of(one.line) for one in found if isinstance(one, Candidate)]
        if prompts and not faults:
            strings = [*_strings([json.loads(one) for one in lines if _is_json(one)])]
            faults = [
                f"no string of the row holds {text!r:.200}" for text in _texts(prompts) if not stands(text, strings)
            ]
        return " ".join(sorted({*outcomes})), "; ".join(faults)

    def told(self, number: int) -> str:
        """Return a case's lines."""
        return b"\n".join(self.drawn(number)).decode("utf-8", "backslashreplace") + "\n"


def line(row: dict[str, Any], rng: Random, rounds: int) -> bytes:
    """Return a row's line, changed in so many places."""
    changed = json.loads(json.dumps(row))
    for _ in range(rounds):
        inner = [key for key, value in changed.items() if isinstance(value, str) and value.lstrip()[:1] in ("[", "{")]
        if inner and rng.random() < 1 / 2:
            _edit_inside(changed, rng.choice(inner), rng)
        else:
            edit(changed, rng, PLAIN)
    told = written(changed, rng).encode("utf-8", "surrogatepass")
    told = spoil(told, rng) if rounds and rng.random() < 1 / 10 else told
    return told.replace(b"\n", b" ")


def _edit_inside(row: dict[str, Any], key: str, rng: Random) -> None:
    """Change the JSON that a column holds as text."""
    try:
        root = json.loads(row[key])
    except (ValueError, RecursionError):
        return
    edit(root, rng, PLAIN)
    row[key] = written(root, rng)


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _strings(values: Sequence[Json]) -> Iterator[str]:
    """Yield every string in the values, also in JSON text."""
    waiting: list[Json] = [*values]
    for value in waiting:  # grows while it is read
        if isinstance(value, str):
            yield value
            if value.lstrip()[:1] in ("[", "{") and _is_json(value.encode("utf-8", "surrogatepass")):
                waiting.append(json.loads(value))
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value


def _texts(prompts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the text of every turn."""
    for prompt in prompts:
        for message in prompt["messages"]:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            yield from (text for text in texts if isinstance(text, str))


def stands(text: str, strings: Sequence[str]) -> bool:
    """Return whether some string holds the text as it is."""
    return any(text in one for one in strings)
