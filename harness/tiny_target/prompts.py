"""The shipped prompts: held-out questions of every topic.

Guarantees: the same prompts each time, in the schema that `generate` reads; none was taught, and every feature of
`FEATURES` occurs at least twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.tiny_target.grammar import samples
from harness.tiny_target.words import Split
from pipeline.records import Json, Prompt

PROMPTS = Path(__file__).resolve().with_name("prompts.jsonl")
SEED = 2026
COUNT = 60
QUOTA = 10
"""Most prompts of one topic, so that rare topics occur."""


def roles(prompt: Prompt) -> list[str]:
    """Return who speaks, in order."""
    return [str(message["role"]) for message in prompt.messages]


FEATURES: Mapping[str, Callable[[Prompt], bool]] = {
    "thinking": lambda prompt: prompt.thinking,
    "instant": lambda prompt: not prompt.thinking,
    "system": lambda prompt: "system" in roles(prompt),
    "multi_turn": lambda prompt: roles(prompt).count("user") > 1,
    "tools_declared": lambda prompt: bool(prompt.tools),
    "tool_transcript": lambda prompt: "tool" in roles(prompt),
}


def shipped() -> list[Prompt]:
    """Return the first held-out prompts under each topic's quota."""
    topics: Counter[str] = Counter()
    chosen: list[Prompt] = []
    drawn = samples(SEED, Split.HELD_OUT)
    while len(chosen) < COUNT:
        prompt = next(drawn).prompt
        topic = prompt.id.rsplit("-", 1)[0]
        topics[topic] += 1
        if topics[topic] <= QUOTA:
            chosen.append(prompt)
    return chosen


def line(prompt: Prompt) -> str:
    """Return one line of JSONL.

    `{"id", "messages", "tools"?, "thinking"?}`, thinking only where it is off.
    """
    entry: dict[str, Json] = {"id": prompt.id, "messages": [dict(message) for message in prompt.messages]}
    if prompt.tools:
        entry["tools"] = [dict(tool) for tool in prompt.tools]
    if not prompt.thinking:
        entry["thinking"] = False
    return json.dumps(entry, ensure_ascii=False) + "\n"


def write_prompts(path: Path) -> int:
    """Write the shipped prompts; return their number."""
    prompts = shipped()
    path.write_text("".join(map(line, prompts)), encoding="utf-8", newline="\n")
    return len(prompts)
