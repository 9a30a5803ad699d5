"""Questions of evaluation sets, and which are held out.

Guarantees: one file is one set. Held-out questions are spread evenly over each set and depend on the files alone. A
line without a question is an error that names it; none is skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.records import Json


class QuestionsError(Exception):
    """A file without questions, or with too few."""


@dataclass(frozen=True, slots=True)
class Question:
    """The turns of one line of a set.

    No row is made of a question that is held out.
    """

    id: str
    dataset: str
    turns: tuple[str, ...]
    held_out: bool = False

    def document(self) -> dict[str, Json]:
        return {"id": self.id, "turns": [*self.turns], "held_out": self.held_out}


def read_questions(files: Sequence[Path], limit: int | None = None) -> list[Question]:
    """Return the first `limit` questions of each file.

    A set is named by its file, or by its folder where all files have one name. Raises QuestionsError, OSError.
    """
    found: list[Question] = []
    for path, name in zip(files, _names(files), strict=True):
        with path.open("rb") as file:
            lines = [line for line in file if line.strip()][:limit]
        if not lines:
            raise QuestionsError(f"{path} holds no question")
        found += [_question(path, number, line, name) for number, line in enumerate(lines)]
    return found


def chosen(questions: Sequence[Question], hold_out: int) -> list[Question]:
    """Mark `hold_out` of the questions, evenly over the sets.

    Raises QuestionsError.
    """
    sets = list(dict.fromkeys(question.dataset for question in questions))
    found: list[Question] = []
    for place, name in enumerate(sets):
        own = [question for question in questions if question.dataset == name]
        share = hold_out // len(sets) + (place < hold_out % len(sets))
        if not 0 <= share < len(own):
            raise QuestionsError(f"{share} of the {len(own)} questions of {name} are to be held out: ask for fewer")
        held = {index * len(own) // share for index in range(share)}
        found += [replace(question, held_out=index in held) for index, question in enumerate(own)]
    return found


def _names(files: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in files]
    names = stems if len(set(stems)) == len(stems) else [path.parent.name for path in files]
    if len(set(names)) < len(names):
        raise QuestionsError(f"two of the files would both be the set {max(names, key=names.count)!r}: rename one")
    return names


def _question(path: Path, number: int, line: bytes, name: str) -> Question:
    try:
        turns = _turns(json.loads(line))
        asked = bool(turns) and all(turn.strip() for turn in turns)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise QuestionsError(
            f"{path}, line {number + 1} holds no question ({type(error).__name__}: {error})"
        ) from error
    if not asked:
        raise QuestionsError(f"{path}, line {number + 1}: nothing is asked there as `turns` or user `messages`")
    return Question(f"{name}-{number:05d}-{hashlib.sha256(line).hexdigest()[:8]}", name, turns)


def _turns(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the turns as they stand, unjudged."""
    if "turns" in value:
        return tuple(value["turns"]) if isinstance(value["turns"], list) else ()
    return tuple(said["content"] for said in value["messages"] if said["role"] == "user")
