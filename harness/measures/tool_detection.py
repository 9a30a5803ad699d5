"""Measure tool detection: confusion matrix, false alarms, recall, hits.

`python -m harness tool-detection FILE...` reads JSON lines.

Guarantees: rows with a `label` (`tools_declared`, `tool_transcript`, `none`) are judged by it; `borderline` ones are
shown and do not count. In a file without labels, rows that declare no tools and are detected all the same are listed as
hits. Exit 1 where an aim is missed: no false alarm, recall of at least 0.95, no hit.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.screen import say, show
from pipeline.datasets.adapters.messages import adapt
from pipeline.datasets.features import Feature, features_of
from pipeline.datasets.rows import Raw, RejectedError
from pipeline.records import Json, Prompt, ToolMode

LABELS = ("tool_transcript", "tools_declared", "none")
RECALL = 0.95
ROLES = {"human": "user", "gpt": "assistant"}
TOOL_COLUMNS = ("tools", "functions", "function", "involved_classes")


@dataclass(slots=True)
class Detection:
    """Results on labelled rows, and hits among unlabelled ones.

    Counts are by (label, found) pair; `wrong` holds id, label and what was found.
    """

    judged: Counter[tuple[str, str]] = field(default_factory=Counter)
    borderline: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    toolless: int = 0
    hits: list[str] = field(default_factory=list)

    @property
    def false_alarms(self) -> int:
        return sum(number for (label, found), number in self.judged.items() if label == "none" != found)

    @property
    def recall(self) -> float:
        """The share of rows with tools whose tools are found."""
        have = sum(number for (label, _), number in self.judged.items() if label != "none")
        found = sum(number for (label, seen), number in self.judged.items() if label != "none" != seen)
        return found / have if have else 1.0

    @property
    def is_good(self) -> bool:
        return not self.false_alarms and self.recall >= RECALL and not self.hits


def label_of(prompt: Prompt) -> str:
    """Return `tool_transcript` first, else `tools_declared`, else `none`."""
    found = features_of(prompt, ToolMode.RAW)
    if Feature.TOOL_TRANSCRIPT in found:
        return "tool_transcript"
    return "tools_declared" if Feature.TOOLS_DECLARED in found else "none"


def detect(paths: Sequence[Path]) -> Detection:
    """Judge every row of the files.

    Raises OSError; ValueError for a row that is no conversation.
    """
    found = Detection()
    for path in paths:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if line.strip():
                _judge(found, json.loads(line), f"{path.name}:{number}")
    return found


def _judge(found: Detection, row: Mapping[str, Json], place: str) -> None:
    seen = label_of(prompt_of_any(row, place))
    label = row.get("label")
    if isinstance(label, str):
        kind = found.borderline if row.get("borderline") else found.judged
        kind[label, seen] += 1
        if seen != label:
            found.wrong.append((str(row.get("id", place)), label, seen))
    elif not any(row.get(column) not in (None, "", "[]", []) for column in TOOL_COLUMNS):
        found.toolless += 1
        if seen != "none":
            found.hits.append(place)


def prompt_of_any(row: Mapping[str, Json], place: str) -> Prompt:
    """Return a row's conversation, in any evaluation set's schema."""
    table = dict(row) if "messages" in row else {**row, "messages": list(_messages(row))}
    table["tools"] = row.get("tools") or row.get("function")
    kept = {key: table.get(key) for key in ("messages", "tools", "functions")}
    try:
        return adapt(Raw({**kept, "id": place}, place, 1))
    except RejectedError:
        messages = table["messages"] if isinstance(table["messages"], list) else []
        return Prompt(place, tuple(each for each in messages if isinstance(each, dict)))


def _messages(row: Mapping[str, Json]) -> Iterator[Json]:
    for key in ("turns", "question", "prompt", "conversations"):
        value = row.get(key)
        if value is not None:
            yield from _turns(value)
            return


def _turns(value: Json) -> Iterator[Json]:
    if isinstance(value, str):
        yield {"role": "user", "content": value}
    elif isinstance(value, list):
        for each in value:
            yield from _turns(each)
    elif isinstance(value, dict) and "from" in value:
        role = str(value["from"])
        yield {"role": ROLES.get(role, role), "content": value["value"]}
    else:
        yield value


def table(found: Detection) -> Iterator[str]:
    """Yield the matrix and the aims as lines."""
    if found.judged:
        yield f"{'label':<16}" + "".join(f"{name:>17}" for name in LABELS)
        for label in LABELS:
            yield f"{label:<16}" + "".join(f"{found.judged[label, seen]:>17}" for seen in LABELS)
        exact = sum(number for (label, seen), number in found.judged.items() if label == seen)
        yield f"false alarms {found.false_alarms}, recall {found.recall:.3f}, right {exact} of {found.judged.total()}"
    for (label, seen), number in sorted(found.borderline.items()):
        yield f"borderline: {number} of {label} found {seen}"
    for name, label, seen in found.wrong:
        yield f"  {name}: {label}, found {seen}"
    if found.toolless:
        yield f"rows without tools and without a label: {found.toolless}, hits: {len(found.hits)}"
    yield from (f"  hit: {place}" for place in found.hits)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 where an aim is missed, 2 without rows."""
    parser = argparse.ArgumentParser(
        prog="python -m harness tool-detection", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines, labelled or not")
    options = parser.parse_args(arguments)
    try:
        found = detect(options.files)
    except (OSError, ValueError) as error:
        say(f"error: {error}")
        return 2
    show(*table(found))
    return 0 if found.is_good else 1
