"""Find control tokens that a prompt spells as text.

Guarantees: nothing is rendered or encoded, so a prompt that no format takes is searched as well. Only a vocabulary with
its pinned hash is used for its formats, and the formats searched for are named.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

import orjson

from pipeline.base.prompts import texts_of
from pipeline.formats.format import Format
from pipeline.formats.registry import FORMATS, Family, find_tokenizer
from pipeline.formats.tokenizer import TokenizerError
from pipeline.records import Prompt

_ESCAPED = frozenset('"\\') | {chr(code) for code in range(32)}
"""Characters that JSON escapes."""
OPENING = 2
"""Characters that control tokens begin with; most texts without one lack these."""


class ControlText:
    """The names of control tokens of some formats."""

    def __init__(self, formats: Sequence[str], names: Collection[str]) -> None:
        self.formats = tuple(formats)
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(set(names), key=lambda name: (-len(name), name)):
            groups[name[:OPENING]].append(name[OPENING:])
        self._openings = tuple(groups)
        self._plain = not any(_ESCAPED & set(name) for name in names)
        kinds = (f"{re.escape(opening)}(?:{'|'.join(map(re.escape, rest))})" for opening, rest in groups.items())
        self._pattern = re.compile("|".join(kinds)) if groups else None

    def first_in(self, prompt: Prompt) -> tuple[str, str] | None:
        """Return the first control token spelled, and where."""
        if self._is_clean(prompt):
            return None
        for place, text in texts_of(prompt):
            if self._pattern is not None and any(opening in text for opening in self._openings):
                found = self._pattern.search(text)
                if found is not None:
                    return found.group(), place
        return None

    def _is_clean(self, prompt: Prompt) -> bool:
        """Whether no name stands in the prompt's JSON.

        That is one text to search, where the prompt has many.
        """
        if not self._plain or self._pattern is None:
            return self._pattern is None
        try:
            text = orjson.dumps((prompt.messages, prompt.tools)).decode()
        except orjson.JSONEncodeError:
            return False
        return not any(opening in text for opening in self._openings) or self._pattern.search(text) is None


def spelled_by(fmt: Format) -> ControlText:
    """Return the control tokens of an open format."""
    return ControlText((fmt.name,), fmt.tokenizer.control_names)


def spelled_at_hand() -> ControlText:
    """Return those of every format whose vocabulary is found here."""
    known: dict[str, Sequence[str] | None] = {}
    for name, family in FORMATS.items():
        directory = find_tokenizer(name)
        if directory is not None and family.sha256 not in known:
            known[family.sha256] = _names_in(directory, family)
    formats = [name for name, family in FORMATS.items() if known.get(family.sha256) is not None]
    return ControlText(formats, frozenset(chain.from_iterable(names or () for names in known.values())))


def _names_in(directory: Path, family: Family) -> Sequence[str] | None:
    """Return a vocabulary's names; None if not the pinned one.

    No tokenizer is made where the file lists them.
    """
    try:
        if family.file != "tokenizer.json":
            return family.read(directory).control_names
        raw = (directory / family.file).read_bytes()
    except (OSError, TokenizerError):
        return None
    if hashlib.sha256(raw).hexdigest() != family.sha256:
        return None
    return [str(token["content"]) for token in orjson.loads(raw)["added_tokens"]]
