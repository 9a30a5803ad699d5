"""Hold how a prompt and its row differ.

Guarantees: a change has one name of a closed list, so that changes can be counted; all else is a difference, in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.records import Json, JsonObject


class Change(StrEnum):
    """What a prompt leaves out, or writes otherwise."""

    AFTER_QUESTION = "after_question"
    SYSTEM = "system"
    REPEAT = "repeat"
    TOOL_TWICE = "tool_twice"
    DECODED = "decoded"
    JOINED = "joined"


CHANGES: Mapping[Change, str] = {
    Change.AFTER_QUESTION: "turns after the question were left out, its recorded answer first",
    Change.SYSTEM: "a system text was left out that the dataset's page names: a footer, or another model's orders",
    Change.REPEAT: "a user's turn that says the same as the one before it was left out",
    Change.TOOL_TWICE: "a function that was declared twice in the same words is declared once",
    Change.DECODED: "the syntax of a row that is one text became turns, tools and calls; what they say was kept",
    Change.JOINED: "the row was joined of several, each of which is named",
}


@dataclass(slots=True)
class Comparison:
    """Changes, each with what was changed, and differences."""

    changes: list[tuple[Change, str]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def state(self, change: Change, what: str) -> None:
        self.changes.append((change, what))

    def differ(self, what: str) -> None:
        self.differences.append(what)

    def compare_tools(self, functions: Json, tools: Sequence[JsonObject]) -> None:
        """Hold tools to the functions of a row, each once."""
        wanted: list[Json] = []
        for function in functions if isinstance(functions, list) else [functions]:
            if function in wanted:
                self.state(Change.TOOL_TWICE, "a function that is declared twice, in the same words")
            else:
                wanted.append(function)
        if [{"type": "function", "function": function} for function in wanted] != [*tools]:
            self.differ("tools: not the functions that the row declares")
