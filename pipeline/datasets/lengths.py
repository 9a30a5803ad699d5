"""Prompts that a target can be asked: rendered by its own template, and no longer than a limit in tokens.

Guarantees: a length is that of the ids that the target is served. A prompt that is too long loses whole turns from its
end, back to an earlier question, never a part of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.datasets.conversation import waiting
from pipeline.datasets.rows import Reject, RejectedError
from pipeline.records import Prompt, RefusedError

if TYPE_CHECKING:
    from pipeline.formats.format import Format


@dataclass(frozen=True, slots=True)
class Target:
    """A target's format, and the most tokens that a prompt may have (None: any number)."""

    fmt: Format
    most: int | None = None

    def fitted(self, prompt: Prompt) -> Prompt:
        """The prompt, or as much of its beginning as fits. Raises RejectedError."""
        with _said():
            spelled = self.fmt.special_text(prompt)
        if spelled is not None:
            raise RejectedError(Reject.SPECIAL_TEXT, f"the prompt spells {spelled}")
        if (tokens := self._tokens(prompt)) <= (self.most or tokens):
            return prompt
        ends = [end for end in waiting(prompt.messages) if end < len(prompt.messages)]
        fitting = self._longest(prompt, ends)
        if fitting is None:
            raise RejectedError(
                Reject.TOO_LONG, f"{tokens} tokens as a whole, and the first question alone over {self.most}"
            )
        return fitting

    def _longest(self, prompt: Prompt, ends: Sequence[int]) -> Prompt | None:
        """The longest prefix that fits, found by halving: a longer conversation has more tokens."""
        low, high, found = 0, len(ends), None
        while low < high:
            middle = (low + high) // 2
            shorter = replace(prompt, messages=prompt.messages[: ends[middle]])
            if self._tokens(shorter) <= (self.most or 0):
                low, found = middle + 1, shorter
            else:
                high = middle
        return found

    def _tokens(self, prompt: Prompt) -> int:
        with _said():
            return len(self.fmt.render(prompt))


@contextmanager
def _said() -> Iterator[None]:
    """The format's refusal as a reason for the row."""
    try:
        yield
    except RefusedError as error:
        where = f" ({error.refusal.field})" if error.refusal.field else ""
        raise RejectedError(Reject.UNRENDERABLE, f"{error.refusal.detail}{where}") from None
