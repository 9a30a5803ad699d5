"""Prompts held to their rows: what a page names is stated, and all else is a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.fixtures.dataset_rows import FILE, LINE
from pipeline.datasets.adapters.sharegpt import joined_chunks
from pipeline.datasets.blocks import RowsBlock, rows_of
from pipeline.datasets.fidelity.compare import compare, compare_raw, differences
from pipeline.datasets.registry import DATASETS, Turns
from pipeline.datasets.rows import Raw, Rejected
from pipeline.records import JsonObject, Prompt

OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
BAKE = {"name": "bake", "description": "Bakes.", "parameters": {"type": "object"}}
CALLED = """<functioncall> {"name": "bake", "arguments": '{"loaves":  2}'} <|endoftext|>"""
FOOTER = "*This conversation is shared from [**ChatHub**](https://chathub.gg)*"
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"x":1}'}}
CHAT = [("user", " Why?\t"), ("assistant", "<b>So</b>. "), ("user", "1 / 2\nAnd\r\n?\n"), ("assistant", "Thus.")]
TOLD: list[Any] = [{"role": role, "content": text} for role, text in CHAT]
SPOKEN: list[Any] = [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in CHAT]
ROWS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "B1",
        {
            "system": OFFER + json.dumps(BAKE, indent=4) + "\n\n" + json.dumps(BAKE) + "\n",
            "chat": "USER: Two, \n please. \n\n\nASSISTANT: At once.\n"
            f"{CALLED}\n\n\nFUNCTION RESPONSE: {{}} \n\n\nASSISTANT: Done.\n\n1. Yes <|endoftext|>"
            "\n\n\nUSER: More?\n\n\n",
        },
        ["tool_twice", "decoded"],
    ),
    (
        "B1",
        {"system": "SYSTEM: No functions.\n\n", "chat": "USER: a\n\nUSER: a\n\nUSER: b\n\nASSISTANT: c"},
        ["decoded", "repeat", "after_question"],
    ),
    (
        "B1-llamafactory",
        {
            "conversations": [
                {"from": "human", "value": "Two. "},
                {"from": "function_call", "value": '{"name": "bake", "arguments": {"loaves":2}}'},
                {"from": "observation", "value": " {}"},
                {"from": "gpt", "value": "Done."},
                {"from": "human", "value": "More."},
            ],
            "tools": json.dumps([BAKE]),
        },
        [],
    ),
    ("B2", {"id": "a", "input": " Sort\r\nit. ", "output": "x"}, []),
    ("B3", {"problem": "Sort it.\n", "solution": "x"}, []),
    ("B3", {"instruction": "\tSort it."}, []),
    ("B4", {"messages": [{"role": "system", "content": "detailed thinking on"}, *TOLD]}, ["system", "after_question"]),
    ("B4", {"messages": [{"role": "system", "content": "detailed thinking on!"}, *TOLD]}, ["after_question"]),
    (
        "B5",
        {"system": "<|begin_of_thought|>", "conversations": [{"from": "user", "value": "Why? "}]},
        ["system"],
    ),
    ("B5", {"conversations": SPOKEN}, ["after_question"]),
    ("B6", {"messages": TOLD, "prompt_id": "p"}, ["after_question"]),
    (
        "B7",
        {"conversations": [{"from": "system", "value": FOOTER}, SPOKEN[0], *SPOKEN]},
        ["system", "repeat", "after_question"],
    ),
    (
        "B8",
        {
            "trajectory": [
                {"role": "system", "system_prompt": "COMMANDS:", "text": None},
                {"role": "user", "system_prompt": None, "text": "Fix \x1b[31mit\x1b[0m.\x00"},
                {"role": "ai", "system_prompt": None, "text": "```\nls\n```"},
                {"role": "user", "system_prompt": None, "text": "a\n"},
            ]
        },
        [],
    ),
    (
        "B8",
        {
            "messages": json.dumps(
                [
                    {"role": "user", "content": [{"type": "text", "text": "Fix it. "}]},
                    {"role": "assistant", "content": None, "tool_calls": [CALL], "thought": "t"},
                    {"role": "tool", "content": [{"type": "text", "text": "a\x00"}], "tool_call_ids": ["c1"]},
                ]
            ),
            "traj_id": "t",
        },
        [],
    ),
    (
        "messages",
        {
            "messages": [{"role": "user", "content": "a ", "name": None}, {"role": "assistant", "content": "b"}],
            "functions": [BAKE],
            "tools": None,
            "thinking": False,
        },
        [],
    ),
]  # fmt: skip


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
