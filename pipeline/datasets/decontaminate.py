r"""Find prompts that share words with an evaluation prompt.

Guarantees: a run of 13 words in common is found wherever it stands, of 8 where the evaluation prompt is code, and so is
a whole turn that is equal, however short. Words are `\w+` of the case-folded text, and in scripts that set no blanks
between words each character is one (a word of English says about as much as two of Chinese, so such runs are found
sooner, not later). Case, width, white space, punctuation, combining marks and invisible characters hide nothing. A run
does not count where most of its words are numbers, or where three prompts of one file share it, which then is
their template (`Complete the code I provided. from typing import List`). Sizes: 13 is GPT-3's (Brown et al. 2020,
appendix C), 8 is open-r1's for its sets of code and mathematics.

Of a folder of evaluations only the questions are read, whatever their columns are called, never the reference answers.
A file without questions is named.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from pipeline.base.file_kinds import PACKED
from pipeline.datasets.blocks import rows_of
from pipeline.datasets.conversation import normal, text_of
from pipeline.datasets.rows import Raw, Rejected
from pipeline.datasets.sources import KINDS, Schema, SourceError, blocks_of
from pipeline.records import Json, JsonObject, Prompt

LONG, SHORT = 13, 8
PROBE, STRIDE = 6, 3
"""Each run of 8 words or more holds one of 6 that begins at a multiple of 3: most texts fail this cheap test."""
TEMPLATE = 3
"""Prompts of one file that share a run of words which then is their template."""
SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff"  # Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\uaa80-\uaadf"  # Khmer, Tai
    "\u1b00-\u1b7f\ua980-\ua9df\uaa00-\uaa5f"  # Balinese, Javanese, Cham
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u303b\u3400-\u4dbf\u4e00-\u9fff"  # Han
    "\uf900-\ufaff\U00020000-\U0003ffff"  # more of Han
    "\u3040-\u30ff\u31f0-\u31ff\U0001aff0-\U0001b16f"  # kana
    "\u3100-\u312f\u31a0-\u31bf\ua000-\ua4cf"  # Bopomofo, Yi
)
"""Characters of scripts that set no blanks between words."""
WORD = re.compile(r"\w+")
UNIT = re.compile(rf"[^\W{SPACELESS}]+|(?=\w)[{SPACELESS}]")
ALONE = re.compile(rf"[{SPACELESS}]")
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
        if (number := self.whole.get(_whole(words, text))) is not None:
            return Hit(" ".join(words[:LONG]) or text[:LONG], self.places[number])
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
        for size in _sizes(one):
            for at, run in enumerate(_runs(words, size)):
                if (one.file, run) not in template and _is_own(words[at : at + size]):
                    runs[size].setdefault(run, number)
        probes.update(_runs(words, PROBE))
        whole.setdefault(_whole(words, one.text), number)
    return NGrams(tuple(one.place for one in texts), runs, whole, frozenset(probes))


def _is_own(run: Sequence[str]) -> bool:
    """Whether a run can be an evaluation's own.

    Counting from 1 to 8 is not, nor are so few characters of a script without blanks that they are three words.
    """
    letters = sum(any(map(str.isalpha, word)) for word in run)
    return 2 * letters >= len(run) and (len(run) == LONG or 2 * sum(map(_stands_alone, run)) <= len(run))


def _stands_alone(word: str) -> bool:
    return ALONE.match(word) is not None


def _sizes(text: EvaluationText) -> tuple[int, ...]:
    return (SHORT, LONG) if CODE.search(text.text) else (LONG,)


def _template_runs(texts: Sequence[EvaluationText]) -> set[tuple[str, int]]:
    """Return the runs that different prompts of one file share.

    Each is given with its file.
    """
    different = {(one.file, tuple(words_of(one.text))): _sizes(one) for one in texts}
    shared = Counter(
        (file, run) for (file, words), sizes in different.items() for size in sizes for run in set(_runs(words, size))
    )
    return {key for key, times in shared.items() if times >= TEMPLATE}


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    if text.isascii():
        return WORD.findall(text.casefold())
    return UNIT.findall(unicodedata.normalize("NFKD", text).casefold().translate(_unseen()))


@cache
def _unseen() -> Mapping[int, None]:
    """Return combining marks and invisible characters, to remove."""
    codes = chain(range(0xAD, 0x20000), range(0xE0000, 0xE01F0))
    return {code: None for code in codes if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me", "Cf")}


def _runs(words: Sequence[str], size: int) -> Iterator[int]:
    return map(hash, zip(*(words[at:] for at in range(size)), strict=False))


def _whole(words: Sequence[str], text: str) -> int:
    """Return a turn's hash: of its words, or its signs."""
    return hash(tuple(words) or normal(text.translate(_unseen())))


# Evaluation prompts of a folder

QUESTION_COLUMNS = (
    *("turns", "question", "questions", "prompt", "prompts", "problem", "instruction", "input", "query"),
    *("messages", "conversations", "responses_create_params"),
)
"""Columns in which evaluation sets keep their questions."""
UNREAD = (".csv", ".tsv", ".txt", ".arrow", ".xlsx")
"""Files that may hold questions and are not read; they are named."""


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

    Raises SourceError where nothing is asked at all, and for a file or a record that cannot be read: what it asks would
    not be compared.
    """
    inner = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    found: list[EvaluationText] = []
    without = [str(path) for path in inner if path.suffix in UNREAD]
    for path in inner:
        if path.suffix not in (*KINDS, *PACKED) and path != folder:
            continue
        schema = Schema(str(path), [frozenset()], frozenset(QUESTION_COLUMNS))
        texts = [
            EvaluationText(text, row.file, row.line)
            for block in blocks_of(path, schema)
            for row in map(_required, rows_of(block))
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


def _required(row: Raw | Rejected) -> Raw:
    """Return a record that could be read. Raises SourceError."""
    if isinstance(row, Rejected):
        raise SourceError(f"{row.file}:{row.line} cannot be read, so what it asks would not be compared: {row.detail}")
    return row


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
