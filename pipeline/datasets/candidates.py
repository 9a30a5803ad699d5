"""The part of preparation that looks at one row alone, and so may run in any process.

Guarantees: a block of n rows gives n answers, each a Candidate or a Rejected, whatever the rows hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeline.base.json_lines import line_of, object_of
from pipeline.datasets.blocks import Block
from pipeline.datasets.conversation import waiting
from pipeline.datasets.decontaminate import Grams
from pipeline.datasets.keys import digest, normal, skeleton
from pipeline.datasets.lengths import Target
from pipeline.datasets.registry import Dataset, outcomes_of
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError
from pipeline.records import Json, Prompt


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt that only other rows can still keep out: its line, and the keys by which it is compared with them."""

    id: str
    line: bytes
    skeleton: str
    opening: str
    file: str
    at: int

    def rejected(self, reason: Reject, detail: str) -> Rejected:
        """The same, kept out; the row is the prompt."""
        return Rejected(self.id, reason, detail, self.file, self.at, object_of(self.line))


@dataclass(frozen=True, slots=True)
class Sieve:
    """What each row is held to: the target's template and limit, and the evaluation prompts; None where nothing is."""

    dataset: Dataset
    target: Target | None = None
    grams: Grams | None = None

    def answers(self, block: Block) -> list[Candidate | Rejected]:
        """One answer a row, in order."""
        return list(self._each(block))

    def _each(self, block: Block) -> Iterator[Candidate | Rejected]:
        for raw, outcome in outcomes_of(self.dataset, block):
            if raw is None or isinstance(outcome, Rejected):
                yield outcome  # type: ignore[misc]  # a row that could not be read has no prompt
                continue
            try:
                yield self._candidate(raw, outcome)
            except RejectedError as error:
                yield replace(error.of(raw, outcome.id), row=document(outcome))

    def _candidate(self, raw: Raw, prompt: Prompt) -> Candidate:
        prompt = _open_ended(prompt)
        if self.target is not None:
            prompt = self.target.fitted(prompt)
        if self.grams is not None and (hit := self.grams.hit(prompt)) is not None:
            raise RejectedError(Reject.CONTAMINATED, f"{hit.place} says {hit.words!r} too")
        opening = normal(self.dataset.opening(prompt))
        keys = digest(skeleton(prompt)), digest(opening)
        return Candidate(prompt.id, line_of(document(prompt)), *keys, raw.file, raw.line)


def document(prompt: Prompt) -> dict[str, Json]:
    """The prompt in the schema that `generate` reads; what is as by default is left out."""
    line: dict[str, Json] = {"id": prompt.id, "messages": [dict(message) for message in prompt.messages]}
    if prompt.tools:
        line["tools"] = [dict(tool) for tool in prompt.tools]
    if not prompt.thinking:
        line["thinking"] = False
    return {**line, "dataset": prompt.dataset}


def _open_ended(prompt: Prompt) -> Prompt:
    """The prompt without recorded answers after its last question. Raises RejectedError(NO_TURNS)."""
    ends = waiting(prompt.messages)
    if not ends:
        raise RejectedError(Reject.NO_TURNS, "no turn of the row waits for an answer")
    return replace(prompt, messages=prompt.messages[: ends[-1]])
