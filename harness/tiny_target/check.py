"""The tiny target's examination on held-out prompts, at temperature 1.

Guarantees: an answer counts as valid only if the format lays it out whole, in UTF-8, with its end token and with JSON
for arguments; the limits are the ones that the emulator's users rely on. Needs torch and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median
from typing import TYPE_CHECKING

from harness.tiny_target.grammar import samples
from harness.tiny_target.words import Split
from harness.views.resplit import canonical
from pipeline.records import Ids, Prompt, RefusedError, Sampling

if TYPE_CHECKING:
    from pipeline.formats.format import Format
    from pipeline.generation.engines.local import LocalEngine
    from pipeline.generation.engines.output import EngineOutput

MAX_TOKENS = 256
BATCH = 32
LEAST_VALID = 0.95
LOOSE_LIMITS = (0.005, 0.05)


@dataclass(frozen=True, slots=True)
class Marks:
    """The examination's counts.

    Each of `answers`, but for `tokens`, the median length.
    """

    answers: int
    valid: int
    loose: int
    loose_same_count: int
    tokens: float

    def faults(self) -> list[str]:
        """Return each limit that is broken, as a sentence."""
        found = []
        if self.valid < LEAST_VALID * self.answers:
            found.append(f"{self.valid} of {self.answers} answers are valid, at least {LEAST_VALID:.0%} must be")
        low, high = LOOSE_LIMITS
        if not low <= self.loose / self.answers <= high:
            found.append(f"{self.loose} of {self.answers} answers are non-canonical, wanted {low:.1%} to {high:.1%}")
        return found

    def table(self) -> str:
        """Return the counts and shares, one line each."""
        rows = (("valid", self.valid), ("non-canonical", self.loose), ("… of the same count", self.loose_same_count))
        lines = [f"{name:<20} {count:>5} of {self.answers}  {count / self.answers:7.2%}" for name, count in rows]
        return "\n".join([*lines, f"{'median tokens':<20} {self.tokens:>5g}"])


def examine(engine: LocalEngine, fmt: Format, count: int, seed: int) -> Marks:
    """Return the marks of `count` held-out prompts.

    Each is answered once at temperature 1 under its own seed.
    """
    prompts = held_out(count, seed)
    answers = list(answer(engine, fmt, prompts, seed))
    loose = [ids for ids in answers if canonical(fmt.tokenizer, ids) != ids]
    same = [ids for ids in loose if len(canonical(fmt.tokenizer, ids) or ()) == len(ids)]
    valid = sum(is_valid(fmt, ids, thinking=prompt.thinking) for prompt, ids in zip(prompts, answers, strict=True))
    return Marks(count, valid, len(loose), len(same), median(map(len, answers)))


def held_out(count: int, seed: int) -> list[Prompt]:
    """Return the first prompts of the held-out split."""
    return [sample.prompt for sample in islice(samples(seed, Split.HELD_OUT), count)]


def answer(engine: LocalEngine, fmt: Format, prompts: Sequence[Prompt], seed: int) -> Iterator[Ids]:
    """Yield the ids of each prompt's answer, in order."""
    for start, stop in pairwise([*range(0, len(prompts), BATCH), len(prompts)]):
        sampling = [Sampling(max_tokens=MAX_TOKENS, seed=seed * 1_000_003 + row) for row in range(start, stop)]
        answers: list[EngineOutput] = engine.generate([fmt.render(prompt) for prompt in prompts[start:stop]], sampling)
        yield from (each.ids for each in answers)


def is_valid(fmt: Format, ids: Ids, *, thinking: bool) -> bool:
    """Return whether the format lays the answer out whole.

    Thinking closed, calls whole with JSON arguments, ended.
    """
    try:
        parts = fmt.parts(ids, thinking=thinking)
    except RefusedError:
        return False
    argument = fmt.tool_markers()["<|tool_call_argument_begin|>"]
    arguments = [text for marker, text in pairwise(parts.body) if marker == argument]
    try:
        for text in arguments:
            json.loads(str(text))
    except ValueError:
        return False
    return parts.ended and all(isinstance(text, str) for text in arguments)
