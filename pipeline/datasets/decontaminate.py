r"""Which prompts share a run of words with an evaluation prompt.

Guarantees: a run of 13 words in common is found wherever it stands, of 8 where the evaluation prompt is code, and so is
a whole turn that is equal. Words are `\w+` of the folded text, so case, white space and punctuation hide nothing. A run
that tells nothing does not count: most of its words are numbers, or three prompts of one file share it, which then is
their wrapping (`Complete the code I provided. from typing import List`). Sizes: 13 is GPT-3's (Brown et al. 2020,
appendix C), 8 is open-r1's for its sets of code and mathematics.

Evaluation prompts as they lie in a folder, whatever their files call them.

Guarantees: only what an evaluation asks is read, never its reference answers; a file in which nothing is asked is
named.
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
"""Each run of 8 words or more holds a run of 6 that begins at a multiple of 3: so few need a look at all."""
LEAST = 4
"""Words that an equal turn must have: shorter ones (`Thank you.`) are no evaluation's own."""
WRAPPING = 3
WORD = re.compile(r"\w+")
CODE = re.compile(
    r"```|>>>|^\s*(?:def|class|fn|func|function|public|static|#include|import|from \w+ import)\b", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Hit:
    """The words in common, and the evaluation prompt that has them."""

    words: str
    place: str


@dataclass(frozen=True, slots=True)
class NGrams:
    """Runs of words of evaluation prompts, by hash, with the number of the prompt that each is from."""

    places: tuple[str, ...]
    runs: Mapping[int, Mapping[int, int]]
    whole: Mapping[int, int]
    probes: frozenset[int]

    def hit(self, prompt: Prompt) -> Hit | None:
        """The first run in common of any text but the recorded answers; None where there is none."""
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


def grams_of(asked: Sequence[EvaluationText]) -> NGrams:
    """The runs of all that evaluations ask."""
    runs: dict[int, dict[int, int]] = {LONG: {}, SHORT: {}}
    whole: dict[int, int] = {}
    probes: set[int] = set()
    wrapping = _wrapping(asked)
    for number, one in enumerate(asked):
        words = words_of(one.text)
        size = _size(one)
        for at, run in enumerate(_runs(words, size)):
            if (one.file, run) not in wrapping and _tells(words[at : at + size]):
                runs[size].setdefault(run, number)
        probes.update(_runs(words, PROBE))
        if len(words) >= LEAST:
            whole.setdefault(_hash(words), number)
    return NGrams(tuple(one.place for one in asked), runs, whole, frozenset(probes))


def _size(asked: EvaluationText) -> int:
    return SHORT if CODE.search(asked.text) else LONG


def _wrapping(asked: Sequence[EvaluationText]) -> set[tuple[str, int]]:
    """Runs that several different prompts of one file share, with that file."""
    different = {(one.file, tuple(words_of(one.text))): _size(one) for one in asked}
    shared = Counter((file, run) for (file, words), size in different.items() for run in set(_runs(words, size)))
    return {key for key, times in shared.items() if times >= WRAPPING}


def _tells(run: Sequence[str]) -> bool:
    """Whether at least half of the words hold a letter: counting from 1 to 8 is nobody's question."""
    return 2 * sum(any(map(str.isalpha, word)) for word in run) >= len(run)


def words_of(text: str) -> list[str]:
    """The words that count."""
    return WORD.findall(text.casefold())


def _runs(words: Sequence[str], size: int) -> Iterator[int]:
    return map(hash, zip(*(words[at:] for at in range(size)), strict=False))


def _hash(words: Iterable[str]) -> int:
    return hash(tuple(words))


ASKED = (
    *("turns", "question", "questions", "prompt", "prompts", "problem", "instruction", "input", "query"),
    *("messages", "conversations", "responses_create_params"),
)
"""The columns under which evaluation sets keep what they ask."""


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """One text that an evaluation asks, and where."""

    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Where it stands, in short: the last two parts of the path and the record's number."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


def asked_in(folder: Path) -> tuple[list[EvaluationText], list[str]]:
    """All that is asked below a folder (or in a file), and the files in which nothing is. Raises SourceError."""
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.suffix in KINDS)
    found: list[EvaluationText] = []
    silent: list[str] = []
    for path in paths:
        asked = list(_asked_in_file(path))
        found += asked
        silent += [] if asked else [str(path)]
    if not found:
        what = "no file in it asks anything" if folder.exists() else "there is no such folder"
        raise SourceError(f"{folder}: {what} ({', '.join(ASKED[:6])}, messages …). Give a folder of evaluation prompts")
    return found, silent


def _asked_in_file(path: Path) -> Iterator[EvaluationText]:
    for block in blocks_of(path, Schema(str(path), [frozenset()], frozenset(ASKED))):
        for row in rows_of(block):
            if isinstance(row, Raw):
                texts = (text for column in ASKED if column in row.value for text in _texts(row.value[column]))
                yield from (EvaluationText(text, row.file, row.line) for text in texts if text.strip())


def _texts(value: Json) -> Iterator[str]:
    """Texts as they stand, and what users say in lists of messages, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _said(value) if "role" in value or "from" in value else _texts(value.get("input"))


def _said(message: JsonObject) -> Iterator[str]:
    if message.get("role", message.get("from")) not in ("user", "human"):
        return
    told, parts = message.get("value"), message.get("content")
    yield told if isinstance(told, str) else text_of(message)
    if isinstance(parts, list):
        yield from (str(part["value"]) for part in parts if isinstance(part, dict) and "value" in part)
