"""Trajectories of agents, row by row, on rows of our own in the published schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.fixtures.dataset_rows import by_length, prompt, reason, said
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.rows import Reject


def nebius(*turns: tuple[str, str]) -> dict[str, Any]:
    return {
        "trajectory": [
            {
                "role": role,
                "system_prompt": text if role == "system" else None,
                "text": None if role == "system" else text,
            }
            for role, text in turns
        ]
    }


ACTED = (
    ("system", "COMMANDS:"),
    ("user", "ISSUE 1"),
    ("ai", "```\nls\n```"),
    ("user", "\x1b[31msetup.py\x1b[0m\x00"),
    ("ai", "x"),
)


def test_nebius_prompt_is_a_recorded_prefix_drawn_by_the_row() -> None:
    rows = [nebius(ACTED[0], ("user", f"ISSUE {n}"), *ACTED[2:]) for n in range(30)]
    made = by_length("B8", rows)

    assert {2, 4} == set(made)
    assert [("assistant", "```\nls\n```"), ("user", "\x1b[31msetup.py\x1b[0m\x00")] == said(made[4])[2:]


def test_nebius_demonstration_is_kept_and_is_not_the_task() -> None:
    shown = nebius(ACTED[0], ("user", "Here is a demonstration of how to do it."), ("user", "ISSUE 1"), ("ai", "x"))
    made = prompt("B8-nebius", shown)

    assert 3 == len(made.messages)
    assert "ISSUE 1" == DATASETS["B8-nebius"].opening(made)
    assert Reject.NO_TURNS == reason("B8", nebius())


CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "You can use a computer.", "agent": "main"},
    {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
    {
        "role": "assistant",
        "content": None,
        "thought": "t",
        "tool_calls": [{"index": 1, "id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
    },
    {"role": "tool", "content": [{"type": "text", "text": "OBSERVATION:\na\x00"}], "tool_call_ids": ["c1"]},
]


@pytest.mark.parametrize("as_text", [True, False])
def test_swe_smith_messages_may_be_json_text_or_a_list(as_text: bool) -> None:
    messages = json.dumps(CALLED) if as_text else CALLED
    made = by_length("B8", ({"messages": messages, "traj_id": f"t{n}"} for n in range(30)))

    assert {"B8-smith-tool"} == {found.dataset for found in made.values()}
    assert {2, 4} == set(made)
    assert [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "OBSERVATION:\na\x00"},
    ] == list(made[4].messages[2:])


@pytest.mark.parametrize(
    "answer, form",
    [("<function=bash>\n<parameter=command>ls</parameter>\n</function>", "xml"), ("```\nls\n```", "ticks")],
)
def test_swe_smith_text_forms_are_told_apart_by_their_calls(answer: str, form: str) -> None:
    turns = [{"role": "user", "content": "Fix it."}, {"role": "assistant", "content": answer}]

    assert f"B8-smith-{form}" == prompt("B8", {"messages": json.dumps(turns)}).dataset


@pytest.mark.parametrize("messages", ['[{"role": "user", "content": "a"}', '{"a": 1}', '[], "b": []', "[NaN]", 4])
def test_swe_smith_messages_that_are_no_json_list_are_rejected(messages: object) -> None:
    assert Reject.WRONG_SHAPE == reason("B8-smith-xml", {"messages": messages})


@pytest.mark.parametrize("loose", ["no call", "another call", "no result"])
def test_smith_trajectory_ends_before_an_unpaired_call_or_result(loose: str) -> None:
    """Else an observation would follow an action that did not cause it."""
    asked, call, result = CALLED[1], CALLED[2], CALLED[3]
    more = {
        "no call": [result],
        "another call": [call, {**result, "tool_call_ids": ["c2"]}],
        "no result": [call, {"role": "user", "content": "Go on."}],
    }[loose]
    rest = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    made = by_length("B8", ({"messages": [asked, *more, *rest], "traj_id": f"t{n}"} for n in range(30)))

    assert {1} == set(made)
    assert "Fix it." == DATASETS["B8"].opening(made[1])


def test_smith_trajectory_that_begins_with_a_result_is_rejected() -> None:
    assert Reject.NO_TURNS == reason("B8", {"messages": [CALLED[3], {"role": "assistant", "content": "x"}, CALLED[1]]})


def test_calls_of_one_turn_may_be_answered_in_any_order() -> None:
    call = CALLED[2]["tool_calls"][0]
    both = {**CALLED[2], "tool_calls": [call, {**call, "id": "c2"}]}
    messages = [CALLED[1], both, {**CALLED[3], "tool_call_ids": ["c2"]}, CALLED[3]]
    made = by_length("B8", ({"messages": messages, "traj_id": f"t{n}"} for n in range(30)))

    assert {1, 4} == set(made)


def test_swe_sets_count_as_tool_data_where_no_text_tells() -> None:
    assert {"tools_declared"} == set(DATASETS["B8-smith-ticks"].defaults) == set(DATASETS["B8"].defaults)
