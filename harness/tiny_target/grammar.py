"""The grammar that the tiny target learns.

Guarantees: a seed and a split give the same samples in the same order on every machine, and no last question of one
split occurs in the other. Features: arithmetic, code, chat, tools with one and two calls, tool results, system
prompts, history, tools declared in vain, thinking and instant mode.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from harness.tiny_target.samples import Sample, loosened, with_history, with_system, with_tools
from harness.tiny_target.tools import TOOLS, second_call, tool_result, tools
from harness.tiny_target.topics import arithmetic, chat, coding
from harness.tiny_target.words import SYSTEMS, Draw, Split

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = (arithmetic, coding, chat)
ANSWERED = (*PLAIN, tool_result)
TOPICS = (*PLAIN, tools, tool_result, second_call)
WEIGHTS = (25, 15, 30, 22, 6, 2)
SHARE_OF_HISTORY = 0.15
SHARE_OF_SYSTEM = 0.2
SHARE_OF_IDLE_TOOLS = 0.08


def samples(seed: int, split: Split) -> Iterator[Sample]:
    """Yield samples of the split without end.

    Prompt ids are `{topic}-{number}`.
    """
    # A str seed is hashed by Random itself (sha512), so it does not depend on PYTHONHASHSEED.
    draw = Draw(Random(f"{split}-{seed}"), split)
    number = 0
    while True:
        yield sample(draw, number)
        number += 1


def sample(draw: Draw, number: int) -> Sample:
    """Return one sample of any topic.

    With what the topic does not decide: seams, history, system prompt.
    """
    topic = draw.rng.choices(TOPICS, WEIGHTS)[0]
    made = loosened(topic(draw), draw)
    if topic in PLAIN and draw.chance(SHARE_OF_HISTORY):
        made = with_history(made, draw.one(ANSWERED)(draw))
    elif topic in PLAIN and draw.chance(SHARE_OF_IDLE_TOOLS):
        made = with_tools(made, (draw.one(TOOLS),))
    if draw.chance(SHARE_OF_SYSTEM):
        made = with_system(made, draw.one(SYSTEMS))
    return replace(made, prompt=replace(made.prompt, id=f"{made.prompt.id}-{number}", dataset="tiny_target"))
