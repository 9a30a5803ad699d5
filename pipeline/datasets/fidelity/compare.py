"""Compare a prompt with its row.

Guarantees: the row is read again, by other code than the adapter's, and nothing is stripped, replaced or folded before
texts are compared. Whatever differs is either a Change that the dataset's page names (turns after the question, a
footer, syntax of a template), which is stated, or a difference.

Entry: `differences`, for one row; `compare` states the changes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from pipeline.datasets.adapters import (
    glaive,
    magicoder,
    messages,
    opencode,
    openthoughts,
    sharegpt,
    sweagent,
    ultrachat,
)
from pipeline.datasets.adapters import mixture_of_thoughts as thoughts
from pipeline.datasets.fidelity import source_turns as source
from pipeline.datasets.fidelity.comparison import Change, Comparison
from pipeline.datasets.fidelity.glaive_text import compare_with_text
from pipeline.datasets.rows import Raw
from pipeline.records import JsonObject, Prompt

Turns: TypeAlias = "list[JsonObject]"


def differences(dataset: str, row: JsonObject, prompt: Prompt) -> list[str]:
    """Return where prompt and row say different things.

    `dataset` is a name of the registry, `row` one row as published (of B7, as joined), and `prompt` what its adapter
    made of it, whichever question it ends on. None means: each message of the prompt is a turn of the row with its very
    text, in the row's order, from its first turn on, and tools and thinking are the row's; only what the dataset's page
    names was left out. Never raises for a row that its adapter takes::

        made = DATASETS["B6"].adapt(Raw(row, "rows.jsonl", 1))
        assert isinstance(made, Rejected) or not differences("B6", row, made)
    """
    return compare(dataset, row, prompt).differences


def compare(dataset: str, row: JsonObject, prompt: Prompt) -> Comparison:
    """Return the changes and the differences."""
    found, variant = Comparison(), _variant(dataset, row)
    if variant != messages.NAME and not prompt.thinking:
        found.differ("thinking: the row says nothing of it")
    try:
        _COMPARISONS[variant](row, prompt, found)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        found.differ(f"the row cannot be read as {dataset} publishes it: {type(error).__name__} {error}")
    return found


def compare_raw(dataset: str, raw: Raw, prompt: Prompt) -> Comparison:
    """Return the same of a row that may be joined.

    Each message of each part must stand in the joined row where the part's id says.
    """
    found = compare(dataset, raw.value, prompt)
    for part in raw.parts:
        offset = (sharegpt.chunk_of(part.value) or ("", 0))[1]
        found.state(Change.JOINED, f"{part.value['id']} of {part.file}:{part.line}")
        whole, own = source.as_spoken(raw.value), source.as_spoken(part.value)
        if whole[offset : offset + len(own)] != own:
            found.differ(f"{part.value['id']} does not stand in the joined row at message {offset}")
    return found


def _variant(dataset: str, row: JsonObject) -> str:
    """Return the schema that a row of this dataset has."""
    if dataset == "B3":
        return magicoder.OSS if "problem" in row else magicoder.EVOL
    if dataset == "B5":
        return openthoughts.SMALL if "system" in row else openthoughts.LARGE
    if dataset == "B8":
        return sweagent.NEBIUS if "trajectory" in row else sweagent.TOOL
    return dataset


_Compare: TypeAlias = Callable[[JsonObject, Prompt, Comparison], None]


def _by_turns(read: Callable[[JsonObject], Turns], row: JsonObject, prompt: Prompt, found: Comparison) -> None:
    """Compare messages with the turns that `read` finds."""
    walk(read(row), prompt.messages, found)
    if prompt.tools:
        found.differ("tools: the row declares none")


def _small(row: JsonObject, prompt: Prompt, found: Comparison) -> None:
    _by_turns(partial(source.spoken, column="conversations", roles=openthoughts.SMALL_ROLES), row, prompt, found)
    if row["system"]:
        found.state(Change.SYSTEM, "the column system, which orders another model's delimiters")


def _reshaped(row: JsonObject, prompt: Prompt, found: Comparison) -> None:
    walk(source.glaive_turns(row), prompt.messages, found)
    found.compare_tools(source.json_of(row["tools"]), prompt.tools)


def _own(row: JsonObject, prompt: Prompt, found: Comparison) -> None:
    walk(source.own_turns(row), prompt.messages, found)
    tools = source.own_tools(row)
    if [*prompt.tools] != tools:
        found.differ("tools: not those of the row")
    if prompt.thinking is (row.get("thinking") is False):
        found.differ("thinking: not that of the row")


_COMPARISONS: Mapping[str, _Compare] = {
    glaive.NAME: compare_with_text,
    glaive.RESHAPED: _reshaped,
    opencode.NAME: partial(_by_turns, partial(source.asked, column="input")),
    magicoder.OSS: partial(_by_turns, partial(source.asked, column="problem")),
    magicoder.EVOL: partial(_by_turns, partial(source.asked, column="instruction")),
    thoughts.NAME: partial(_by_turns, partial(source.told, roles=thoughts.ROLES)),
    openthoughts.SMALL: _small,
    openthoughts.LARGE: partial(
        _by_turns, partial(source.spoken, column="conversations", roles=openthoughts.LARGE_ROLES)
    ),
    ultrachat.NAME: partial(_by_turns, partial(source.told, roles=ultrachat.ROLES)),
    sharegpt.NAME: partial(_by_turns, partial(source.spoken, column="conversations", roles=sharegpt.ROLES)),
    sweagent.NEBIUS: partial(_by_turns, source.nebius_turns),
    **dict.fromkeys((sweagent.TOOL, sweagent.XML, sweagent.TICKS), partial(_by_turns, source.smith_turns)),
    messages.NAME: _own,
}


def walk(turns: Sequence[JsonObject], said: Sequence[JsonObject], found: Comparison) -> None:
    """Hold each message to the next turn of the row.

    Turns that may be left out are stated; those after the last message are counted.
    """
    at = 0
    for number, message in enumerate(said):
        while at < len(turns) and turns[at] != message and (change := _left_out(turns, at)) is not None:
            found.state(change, f"turn {at + 1}")
            at += 1
        if at == len(turns) or turns[at] != message:
            wanted = "nothing" if at == len(turns) else f"{turns[at]!r:.200}"
            found.differ(f"messages[{number}] is {message!r:.200}, and the row says {wanted}")
            return
        at += 1
    if at < len(turns):
        found.state(Change.AFTER_QUESTION, f"{len(turns) - at} turns")


def _left_out(turns: Sequence[JsonObject], at: int) -> Change | None:
    """Return why a turn may be left out, or None."""
    turn = turns[at]
    if turn["role"] == "system" and (
        turn["content"] in thoughts.SWITCHES or sharegpt.FOOTER.fullmatch(str(turn["content"]))
    ):
        return Change.SYSTEM
    return Change.REPEAT if turn["role"] == "user" and at and turns[at - 1] == turn else None
