"""Prompts held to their rows: what a page names is stated, and all else is a difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.fixtures.dataset_rows import FILE, LINE
from harness.fixtures.published_rows import CALL, ROWS, SPOKEN
from pipeline.datasets.adapters.sharegpt import joined_chunks
from pipeline.datasets.blocks import RowsBlock, rows_of
from pipeline.datasets.fidelity.compare import compare, compare_raw, differences
from pipeline.datasets.registry import DATASETS, Turns
from pipeline.datasets.rows import Raw, Rejected
from pipeline.records import JsonObject, Prompt


def asked(dataset: str, row: JsonObject) -> list[Prompt]:
    found = DATASETS[dataset].asked(Raw(row, FILE, LINE), Turns.ALL)
    assert not isinstance(found, Rejected)
    return found


@pytest.mark.parametrize("dataset, row, changes", ROWS)
def test_what_is_left_out_is_stated_and_nothing_differs(dataset: str, row: JsonObject, changes: list[str]) -> None:
    *earlier, last = asked(dataset, row)
    found = compare(dataset, row, last)
    wanted = changes if dataset != "messages" else ["after_question"]

    assert ([], wanted) == (found.differences, [str(change) for change, _ in found.changes])
    assert [[]] * len(earlier) == [differences(dataset, row, one) for one in earlier]


def altered(prompt: Prompt) -> Iterator[Prompt]:
    """The prompt, each time with one fault."""
    said = [*prompt.messages]
    for at, message in enumerate(said):
        text = str(message["content"] or "")
        calls: Any = [{**CALL, "id": "c9"}]
        others = (text.strip(), text + " ", text + "\n", text.replace("\r\n", "\n"), text[1:], text[:-1], text + "x")
        for other in others:
            if other != (message["content"] or ""):
                yield replace(prompt, messages=(*said[:at], {**message, "content": other}, *said[at + 1 :]))
        yield replace(prompt, messages=(*said[:at], {**message, "role": "developer"}, *said[at + 1 :]))
        yield replace(prompt, messages=(*said[:at], {**message, "tool_calls": calls}, *said[at + 1 :]))
        if said[at + 1 :]:
            yield replace(prompt, messages=(*said[:at], *said[at + 1 :]))
            yield replace(prompt, messages=(*said[:at], said[at + 1], message, *said[at + 2 :]))
        yield replace(prompt, messages=(*said[: at + 1], {"role": "assistant", "content": "Hm."}, *said[at + 1 :]))
    yield replace(prompt, tools=(*prompt.tools, {"type": "function", "function": {"name": "x"}}))
    yield replace(prompt, thinking=not prompt.thinking)
    if prompt.tools:
        yield replace(prompt, tools=())


@pytest.mark.parametrize("dataset, row, _changes", ROWS)
def test_no_fault_of_an_adapter_is_taken_for_a_change(dataset: str, row: JsonObject, _changes: list[str]) -> None:
    last = asked(dataset, row)[-1]
    missed = [one for one in altered(last) if not differences(dataset, row, one)]

    assert [] == missed


def test_a_row_of_another_schema_is_a_difference() -> None:
    made = Prompt("p", ({"role": "user", "content": "a"},))

    assert all(differences(dataset, {"text": "a"}, made) for dataset in DATASETS)


def test_parts_stand_in_the_joined_row_where_their_ids_say() -> None:
    rows = tuple(
        Raw({"id": f"shareA1_{at}", "conversations": SPOKEN[at:end]}, FILE, at + 1) for at, end in ((0, 3), (2, 4))
    )
    whole = next(row for block in joined_chunks([RowsBlock(rows)]) for row in rows_of(block) if isinstance(row, Raw))
    made = DATASETS["B7"].adapt(whole)
    assert isinstance(made, Prompt)
    (first, second), found = whole.parts, compare_raw("B7", whole, made)
    moved = replace(whole, parts=(first, replace(second, value={**second.value, "id": "shareA1_3"})))

    assert ([], [f"shareA1_{at} of {FILE}:{at + 1}" for at in (0, 2)]) == (
        found.differences,
        [what for change, what in found.changes if change == "joined"],
    )
    assert ["shareA1_3 does not stand in the joined row at message 3"] == compare_raw("B7", moved, made).differences
