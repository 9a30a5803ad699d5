r"""Find prompts that share words with an evaluation prompt.

Guarantees: a run of 13 words in common is found wherever it stands, of 8 where the evaluation prompt is code, and so is
a whole turn that is equal. Words are `\w+` of the case-folded text, so case, white space and punctuation hide nothing.
A run does not count where most of its words are numbers, or where three prompts of one file share it, which then is
their template (`Complete the code I provided. from typing import List`). Sizes: 13 is GPT-3's (Brown et al. 2020,
appendix C), 8 is open-r1's for its sets of code and mathematics.

Of a folder of evaluations only the questions are read, whatever their columns are called, never the reference answers.
A file without questions is named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.datasets.blocks import rows_of
from pipeline.datasets.conversation import text_of
from pipeline.datasets.rows import Raw
from pipeline.datasets.sources import KINDS, Schema, SourceError, blocks_of
from pipeline.records import Json, JsonObject, Prompt

LONG, SHORT = 13, 8
PROBE, STRIDE = 6, 3
"""Each run of 8 words or more holds one of 6 that begins at a multiple of 3: most texts fail this cheap test."""
MIN_TURN = 4
"""Words that an equal turn must have: shorter ones (`Thank you.`) are no evaluation's own."""
TEMPLATE = 3
"""Prompts of one file that share a run of words which then is their template."""
WORD = re.compile(r"\w+")
CODE = re.compile(
    r"```|>>>|^\s*(?:def|class|fn|func|function|public|static|#include|import|from \w+ import)\b", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Hit:
    """Words in common, and the evaluation prompt that has them."""

    words: str
    place: str


@dataclass(frozen=True, slots=True)
class NGrams:
    """Runs of words of evaluation prompts, by hash.

    `runs` (by size) and `whole` (turns) give the number of the prompt, whose place is in `places`.
    """

    places: tuple[str, ...]
    runs: Mapping[int, Mapping[int, int]]
    whole: Mapping[int, int]
    probes: frozenset[int]

    def hit(self, prompt: Prompt) -> Hit | None:
        """Return the first run in common, if any.

        Recorded answers are not searched.
        """
        texts = (text_of(message) for message in prompt.messages if message.get("role") != "assistant")
        return next(filter(None, map(self._in_text, texts)), None)

    def _in_text(self, text: str) -> Hit | None:
        words = words_of(text)
        if (number := self.whole.get(_hash(words))) is not None:
            return Hit(" ".join(words[:LONG]), self.places[number])
        if self.probes.isdisjoint(map(hash, zip(*(words[at::STRIDE] for at in range(PROBE)), strict=False))):
            return None
        for size, known in self.runs.items():
            for at, run in enumerate(_runs(words, size)):
                if (number := known.get(run)) is not None:
                    return Hit(" ".join(words[at : at + size]), self.places[number])
        return None


def grams_of(texts: Sequence[EvaluationText]) -> NGrams:
    """Return the runs of all evaluation texts."""
    runs: dict[int, dict[int, int]] = {LONG: {}, SHORT: {}}
    whole: dict[int, int] = {}
    probes: set[int] = set()
    template = _template_runs(texts)
    for number, one in enumerate(texts):
        words = words_of(one.text)
        size = _size(one)
        for at, run in enumerate(_runs(words, size)):
            with_letters = sum(any(map(str.isalpha, word)) for word in words[at : at + size])
            # Counting from 1 to 8 is no evaluation's own.
            if (one.file, run) not in template and 2 * with_letters >= size:
                runs[size].setdefault(run, number)
        probes.update(_runs(words, PROBE))
        if len(words) >= MIN_TURN:
            whole.setdefault(_hash(words), number)
    return NGrams(tuple(one.place for one in texts), runs, whole, frozenset(probes))


def _size(text: EvaluationText) -> int:
    return SHORT if CODE.search(text.text) else LONG


def _template_runs(texts: Sequence[EvaluationText]) -> set[tuple[str, int]]:
    """Return the runs that different prompts of one file share.

    Each is given with its file.
    """
    different = {(one.file, tuple(words_of(one.text))): _size(one) for one in texts}
    shared = Counter((file, run) for (file, words), size in different.items() for run in set(_runs(words, size)))
    return {key for key, times in shared.items() if times >= TEMPLATE}


def words_of(text: str) -> list[str]:
    """Return the words of a text, case-folded."""
    return WORD.findall(text.casefold())


def _runs(words: Sequence[str], size: int) -> Iterator[int]:
    return map(hash, zip(*(words[at:] for at in range(size)), strict=False))


def _hash(words: Iterable[str]) -> int:
    return hash(tuple(words))


# Evaluation prompts of a folder

QUESTION_COLUMNS = (
    *("turns", "question", "questions", "prompt", "prompts", "problem", "instruction", "input", "query"),
    *("messages", "conversations", "responses_create_params"),
)
"""Columns in which evaluation sets keep their questions."""


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """One text that an evaluation asks, and where it stands."""

    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """The end of the path, and the record's number."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


def asked_in(folder: Path) -> tuple[list[EvaluationText], list[str]]:
    """Return what evaluations ask, and the files without questions.

    Raises SourceError where nothing is asked at all.
    """
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.suffix in KINDS)
    found: list[EvaluationText] = []
    without: list[str] = []
    for path in paths:
        schema = Schema(str(path), [frozenset()], frozenset(QUESTION_COLUMNS))
        rows = (row for block in blocks_of(path, schema) for row in rows_of(block) if isinstance(row, Raw))
        texts = [
            EvaluationText(text, row.file, row.line)
            for row in rows
            for column in QUESTION_COLUMNS
            for text in _texts(row.value.get(column))
            if text.strip()
        ]
        found += texts
        without += [] if texts else [str(path)]
    if not found:
        what = "no file in it asks anything" if folder.exists() else "there is no such folder"
        raise SourceError(
            f"{folder}: {what} ({', '.join(QUESTION_COLUMNS[:6])}, messages …). Give a folder of evaluation prompts"
        )
    return found, without


def _texts(value: Json) -> Iterator[str]:
    """Yield texts, and what users say in lists of messages.

    Lists and `input` objects are searched at any depth.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _user_texts(value) if "role" in value or "from" in value else _texts(value.get("input"))


def _user_texts(message: JsonObject) -> Iterator[str]:
    if message.get("role", message.get("from")) not in ("user", "human"):
        return
    text, parts = message.get("value"), message.get("content")
    yield text if isinstance(text, str) else text_of(message)
    if isinstance(parts, list):
        yield from (str(part["value"]) for part in parts if isinstance(part, dict) and "value" in part)
