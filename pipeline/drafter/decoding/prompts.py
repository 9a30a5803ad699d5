"""Prompts of an evaluation as token ids.

Guarantees: a file's first line decides its kind. `{"id", "prompt_ids"}` is taken as it is; `{"id", "messages"}` (the
schema of `generate --prompts`) is rendered by a format; any other file or folder is an evaluation set, of which each
record's first question is used. A line of no such kind, or with an id that the target lacks, ends the evaluation before
anything is decoded: no prompt is left out silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from pipeline.records import Ids, Prompt, RefusedError

Render: TypeAlias = Callable[[Prompt], Ids]


SCHEMA = '{"id": …, "prompt_ids": […]} a line'


class PromptError(Exception):
    """A file without prompts, or a line that is none."""


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """A prompt's ids, shape [n], and its evaluation set."""

    id: str
    ids: Ids
    dataset: str


Placed: TypeAlias = tuple[str, EvaluationPrompt]
"""Where a prompt was read, and the prompt."""


def evaluation_prompts_in(
    paths: Sequence[Path], render: Render | None, vocabulary: int | None = None
) -> list[EvaluationPrompt]:
    """Return all prompts of these files and folders, in order.

    `vocabulary` is how many ids the target has; a prompt with another id is refused. Raises PromptError, OSError.
    """
    placed = [one for path in paths for one in _prompts_in(path, render)]
    for where, prompt in placed:
        if vocabulary is not None and (highest := max(prompt.ids, default=0)) >= vocabulary:
            raise PromptError(
                f"{where} has the id {highest}, and the target knows ids below {vocabulary}. Give prompts in the "
                "target's own vocabulary, text with its own --format"
            )
    return [prompt for _, prompt in placed]


def _prompts_in(path: Path, render: Render | None) -> Iterator[Placed]:
    """Yield the prompts of one file or folder."""
    keys: set[str] = set()
    if not path.is_dir():
        with path.open("rb") as file:
            first = next((line for line in iter(lambda: file.readline(LONGEST_LINE), b"") if line.strip()), b"")
        with suppress(RefusedError):  # an evaluation set may be one JSON list, or no JSON at all
            keys = set(strict_object(first))
    if "prompt_ids" in keys:
        yield from _ids_in(path)
    elif render is None:
        raise PromptError(
            f"{path} holds text, and not one format alone is known by the target's vocabulary. Give --format NAME (or "
            f"`template`, the target's own), or ids: {SCHEMA}"
        )
    elif "messages" in keys and "id" in keys:
        for line in read_prompts(path):
            if isinstance(line, RefusedLine):
                raise PromptError(f"{path}, line {line.line}: {line.refusal.detail}")
            yield _rendered(f"{path}, {line.id!r}", line, render, line.dataset or path.stem)
    else:
        yield from _first_questions_in(path, render)


def _ids_in(path: Path) -> Iterator[Placed]:
    """Yield prompts that are ids already. Raises PromptError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                value = strict_object(line)
            except RefusedError as error:
                raise PromptError(f"{where}: {error.refusal.detail}") from error
            name, found, dataset = value.get("id"), value.get("prompt_ids"), value.get("dataset") or path.stem
            given = found if isinstance(found, list) else []
            ids = tuple(one for one in given if type(one) is int and one >= 0)
            if not isinstance(name, str) or not ids or len(ids) != len(given) or not isinstance(dataset, str):
                raise PromptError(f"{where}: no prompt. Give {SCHEMA}, ids being whole numbers from 0")
            yield where, EvaluationPrompt(name, ids, dataset)


def _first_questions_in(path: Path, render: Render) -> Iterator[Placed]:
    """Yield each record's first question of an evaluation set.

    Raises PromptError.
    """
    try:
        found, _ = asked_in(path)
    except SourceError as error:
        raise PromptError(str(error)) from error
    for _, turns in groupby(found, key=lambda text: (text.file, text.line)):
        first: EvaluationText = next(iter(turns))
        prompt = Prompt(first.place, ({"role": "user", "content": first.text},))
        # In `mt_bench/question.jsonl` the folder names the set.
        file = Path(first.file)
        name = file.parent.name if file.stem in {"question", "questions", "test", "prompts"} else file.stem
        yield _rendered(first.place, prompt, render, name)


def _rendered(where: str, prompt: Prompt, render: Render, dataset: str) -> Placed:
    """Render a prompt. Raises PromptError."""
    try:
        return where, EvaluationPrompt(prompt.id, render(prompt), dataset)
    except RefusedError as error:
        raise PromptError(f"{where} is not rendered: {error.refusal.detail}") from error


def formats_of(target: Path) -> list[str]:
    """Return the formats whose vocabulary this directory holds."""
    files = sorted({family.file for family in FORMATS.values()})
    found = {name: file_sha256((target / name).resolve()) for name in files if (target / name).is_file()}
    return sorted(name for name, family in FORMATS.items() if found.get(family.file) == family.sha256)


def template_renderer(target: Path) -> Render:
    """Return a renderer by the target's own chat template.

    For targets of no known format. Raises PromptError.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise PromptError(f"{target}: no tokenizer is read there ({first}). Give prompts as ids: {SCHEMA}") from error
    if not tokenizer.chat_template:
        raise PromptError(f"{target} has no chat template. Give prompts as ids: {SCHEMA}")

    def render(prompt: Prompt) -> Ids:
        settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        messages = [dict(message) for message in prompt.messages]
        return tuple(tokenizer.apply_chat_template(messages, tools=list(prompt.tools) or None, **settings))

    return render
