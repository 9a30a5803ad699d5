"""Prompts of an evaluation as token ids, whatever file they come in.

Guarantees: one kind of line a file, told by its first: `{"id", "prompt_ids"}` is taken as it lies; `{"id", "messages"}`
(the schema of `generate --prompts`) is rendered by a format; any other file or folder is an evaluation set, of which
each record's first question is asked. A line that is none of it, or that has an id which the target does not know, ends
the evaluation before anything is decoded: no prompt is left out quietly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from pipeline.base.json_lines import LONGEST_LINE, strict_object
from pipeline.base.prompts import RefusedLine, read_prompts
from pipeline.datasets.decontaminate import EvaluationText, asked_in
from pipeline.datasets.sources import SourceError
from pipeline.formats.registry import FORMATS
from pipeline.gate.digests import file_sha256
from pipeline.records import Ids, Json, Prompt, RefusedError

Render: TypeAlias = Callable[[Prompt], Ids]


class PromptError(Exception):
    """A file that holds no prompts, or a line that is none."""


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """A prompt's ids, shape [n], and the evaluation set that it counts in."""

    id: str
    ids: Ids
    dataset: str


Placed: TypeAlias = tuple[str, EvaluationPrompt]
"""A question, after the place where it stands."""


def evaluation_prompts_in(
    paths: Sequence[Path], render: Render | None, vocabulary: int | None = None
) -> list[EvaluationPrompt]:
    """All prompts of these files and folders, in order. Raises PromptError, OSError.

    `vocabulary` is how many ids the target knows; a prompt with another is refused.
    """
    placed = [one for path in paths for one in _in_one(path, render)]
    for where, question in placed:
        if vocabulary is not None and (highest := max(question.ids, default=0)) >= vocabulary:
            raise PromptError(
                f"{where} has the id {highest}, and the target knows ids below {vocabulary}. Give prompts in the "
                "target's own vocabulary, text with its own --format"
            )
    return [question for _, question in placed]


def formats_of(target: Path) -> list[str]:
    """The formats of which this directory holds the vocabulary, by name."""
    files = sorted({family.file for family in FORMATS.values()})
    found = {name: file_sha256((target / name).resolve()) for name in files if (target / name).is_file()}
    return sorted(name for name, family in FORMATS.items() if found.get(family.file) == family.sha256)


def template_renderer(target: Path) -> Render:
    """A target's own chat template, for targets of which no format is known here. Raises PromptError."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise PromptError(f"{target}: no tokenizer is read there ({said}). Give prompts as ids: {SCHEMA}") from error
    if not tokenizer.chat_template:
        raise PromptError(f"{target} has no chat template. Give prompts as ids: {SCHEMA}")

    def render(prompt: Prompt) -> Ids:
        settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        messages = [dict(message) for message in prompt.messages]
        return tuple(tokenizer.apply_chat_template(messages, tools=list(prompt.tools) or None, **settings))

    return render


SCHEMA = '{"id": …, "prompt_ids": […]} a line'


def _in_one(path: Path, render: Render | None) -> Iterator[Placed]:
    keys = set() if path.is_dir() else _first_keys(path)
    if "prompt_ids" in keys:
        yield from _given(path)
    elif render is None:
        raise PromptError(
            f"{path} holds text, and not one format alone is known by the target's vocabulary. Give --format NAME (or "
            f"`template`, the target's own), or ids: {SCHEMA}"
        )
    elif "messages" in keys and "id" in keys:
        yield from _rendered(path, render)
    else:
        yield from _asked(path, render)


def _first_keys(path: Path) -> set[str]:
    with path.open("rb") as file:
        line = next((line for line in iter(lambda: file.readline(LONGEST_LINE), b"") if line.strip()), b"")
    try:
        return set(strict_object(line))
    except RefusedError:  # an evaluation set may be one JSON list, or no JSON at all
        return set()


def _given(path: Path) -> Iterator[Placed]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _question(path, where, line)


def _question(path: Path, where: str, line: bytes) -> EvaluationPrompt:
    try:
        value = strict_object(line)
    except RefusedError as error:
        raise PromptError(f"{where}: {error.refusal.detail}") from error
    name, ids, dataset = value.get("id"), value.get("prompt_ids"), value.get("dataset") or path.stem
    if not isinstance(name, str) or not _is_ids(ids) or not isinstance(dataset, str):
        raise PromptError(f"{where}: no prompt. Give {SCHEMA}, ids being whole numbers from 0")
    return EvaluationPrompt(name, tuple(ids), dataset)  # type: ignore[arg-type]  # ids, as was just seen


def _is_ids(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and one >= 0 for one in value)


def _rendered(path: Path, render: Render) -> Iterator[Placed]:
    for line in read_prompts(path):
        if isinstance(line, RefusedLine):
            raise PromptError(f"{path}, line {line.line}: {line.refusal.detail}")
        yield _rendered_one(f"{path}, {line.id!r}", line, render, line.dataset or path.stem)


def _asked(path: Path, render: Render) -> Iterator[Placed]:
    try:
        found, _ = asked_in(path)
    except SourceError as error:
        raise PromptError(str(error)) from error
    for _, turns in groupby(found, key=lambda asked: (asked.file, asked.line)):
        first: EvaluationText = next(iter(turns))
        prompt = Prompt(first.place, ({"role": "user", "content": first.text},))
        yield _rendered_one(first.place, prompt, render, _set_of(Path(first.file)))


def _rendered_one(where: str, prompt: Prompt, render: Render, dataset: str) -> Placed:
    try:
        return where, EvaluationPrompt(prompt.id, render(prompt), dataset)
    except RefusedError as error:
        raise PromptError(f"{where} is not rendered: {error.refusal.detail}") from error


def _set_of(path: Path) -> str:
    """`mt_bench` of `mt_bench/question.jsonl`: in such files the folder says what is asked."""
    return path.parent.name if path.stem in {"question", "questions", "test", "prompts"} else path.stem
