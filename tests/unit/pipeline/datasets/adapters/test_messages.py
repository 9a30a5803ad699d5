"""OpenAI messages, row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.fixtures.dataset_rows import prompt, reason
from pipeline.datasets.rows import Reject


def test_messages_and_tools_are_taken_as_they_are() -> None:
    messages = [
        {"role": "tool", "content": [{"type": "text", "text": "a"}], "name": None},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    made = prompt("messages", {"id": 4, "messages": messages, "tools": json.dumps([{"name": "x"}]), "label": "none"})

    assert ("4", "messages", ({"name": "x"},)) == (made.id, made.dataset, made.tools)
    assert [
        {"role": "tool", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ] == list(made.messages)


@pytest.mark.parametrize("role", ["critic", "function", "User", "", "human", "gpt", "model", "bot", "ipython"])
def test_a_role_that_no_template_knows_rejects_the_row(role: str) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]}

    assert Reject.UNKNOWN_ROLE == reason("messages", row)


@pytest.mark.parametrize("tools", ["[]", [], None, "", " "])
def test_no_tools_is_no_tools_however_it_is_written(tools: object) -> None:
    assert () == prompt("messages", {"messages": [{"role": "user", "content": "a"}], "tools": tools}).tools


@pytest.mark.parametrize(
    "row",
    [
        {"messages": []},
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": 4}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": "{"},
        {"messages": [{"role": "user", "content": "a"}], "thinking": "yes"},
        {"messages": [{"role": "user", "content": "a"}], "id": [1]},
        {"messages": [{"role": "user", "content": "a"}], "id": "\ud800"},
    ],
)
def test_a_row_that_is_not_the_schema_is_rejected(row: dict[str, Any]) -> None:
    assert Reject.WRONG_SHAPE == reason("messages", row)
