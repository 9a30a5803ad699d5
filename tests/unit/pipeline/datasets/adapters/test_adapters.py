"""Adapters, row by row, on rows of our own in the published schemas; real rows are in tests/reference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fixtures.dataset_rows import by_length, outcome, prompt, reason, said
from pipeline.datasets.conversation import open_questions
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.rows import Reject, Rejected

# B2 to B6


@pytest.mark.parametrize(
    "dataset, row, question",
    [
        ("B2", {"id": "a", "input": " Sort\r\n\r\nit. ", "output": "x"}, " Sort\r\n\r\nit. "),
        ("B3-oss", {"problem": "Sort it.", "seed": "never sent", "solution": "x"}, "Sort it."),
        ("B3", {"problem": "Sort it.", "seed": "never sent", "solution": "x"}, "Sort it."),
        ("B3", {"instruction": "Sort it.", "response": ""}, "Sort it."),
    ],
)
def test_a_row_of_one_task_is_one_user_turn_as_it_stands(dataset: str, row: dict[str, Any], question: str) -> None:
    assert [("user", question)] == said(prompt(dataset, row))


@pytest.mark.parametrize("dataset, column", [("B2", "input"), ("B3-oss", "problem"), ("B3-evol", "instruction")])
def test_an_empty_question_and_one_that_is_no_text_are_rejected(dataset: str, column: str) -> None:
    assert Reject.EMPTY_PROMPT == reason(dataset, {column: " \n"})
    assert Reject.WRONG_SHAPE == reason(dataset, {column: 4})


def test_mixture_of_thoughts_drops_answer_and_another_familys_switch() -> None:
    turns = [
        {"role": "system", "content": "detailed thinking on"},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "<think>\n.\n</think>\n\nSo."},
    ]

    assert [("user", "Why?")] == said(prompt("B4", {"messages": turns, "num_tokens": 30_000}))


def test_openthoughts_drops_the_system_text_that_orders_anothers_delimiters() -> None:
    turns = [{"from": "user", "value": "Why?"}, {"from": "assistant", "value": "<|begin_of_thought|>"}]
    row = {"system": "Answer in <|begin_of_thought|> and <|end_of_thought|>.", "conversations": turns}

    assert [("user", "Why?")] == said(prompt("B5", row))
    assert "B5-114k" == prompt("B5", row).dataset


def test_openthoughts3_has_other_roles_and_no_system() -> None:
    made = prompt(
        "B5", {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "<think>\nLet"}]}
    )

    assert ("B5-3", [("user", "Why?")]) == (made.dataset, said(made))
    assert Reject.UNKNOWN_ROLE == reason("B5-3", {"conversations": [{"from": "user", "value": "Why?"}]})


def chat(*turns: str) -> dict[str, Any]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return {"messages": [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns], "prompt_id": "p"}


@pytest.mark.parametrize(
    "row, kept",
    [
        (chat("u:a", "a:b", "u:c", "a:d"), ["a", "b", "c"]),
        (chat("u:a", "a:b", "u:c"), ["a", "b", "c"]),
        (chat("s:be brief", "u:a", "a:b"), ["be brief", "a"]),
        (chat("u:a", "a:", "u:c", "a:d"), ["a"]),
        (chat("u:a", "a:b", "u: ", "a:d"), ["a"]),
        (chat("u:a", "u:a", "a:b"), ["a"]),
        (chat("u:a", "u:b", "a:c"), ["a", "b"]),
    ],
)
def test_ultrachat_prompt_ends_at_its_last_sound_question(row: dict[str, Any], kept: list[str]) -> None:
    assert kept == [content for _, content in said(prompt("B6", row))]


@pytest.mark.parametrize(
    "row, why",
    [
        (chat(), Reject.NO_TURNS),
        (chat("s:a"), Reject.NO_TURNS),
        (chat("a:b"), Reject.NO_TURNS),
        (chat("a:b", "u:c"), Reject.NO_BEGINNING),
        (chat("u:", "a:b", "u:c"), Reject.EMPTY_PROMPT),
        ({"messages": "[]"}, Reject.WRONG_SHAPE),
        ({"messages": ["a"]}, Reject.WRONG_SHAPE),
        ({"messages": [{"role": "user", "content": None}]}, Reject.WRONG_SHAPE),
        ({"messages": [{"role": "tool", "content": "a"}]}, Reject.UNKNOWN_ROLE),
    ],
)
def test_ultrachat_row_without_a_sound_question_is_rejected(row: dict[str, Any], why: Reject) -> None:
    assert why == reason("B6", row)


# B8


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


def test_nebius_prompt_is_a_recorded_prefix_and_the_answer_is_drawn_by_the_row() -> None:
    rows = [nebius(ACTED[0], ("user", f"ISSUE {n}"), *ACTED[2:]) for n in range(30)]
    made = by_length("B8", rows)

    assert {2, 4} == set(made)
    assert [("assistant", "```\nls\n```"), ("user", "setup.py")] == said(made[4])[2:]


def test_nebius_demonstration_is_kept_and_is_not_what_the_trajectory_is_about() -> None:
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
        {"role": "tool", "tool_call_id": "c1", "content": "OBSERVATION:\na"},
    ] == list(made[4].messages[2:])


@pytest.mark.parametrize(
    "answer, form",
    [("<function=bash>\n<parameter=command>ls</parameter>\n</function>", "xml"), ("```\nls\n```", "ticks")],
)
def test_swe_smith_text_forms_are_told_apart_by_their_calls(answer: str, form: str) -> None:
    turns = [{"role": "user", "content": "Fix it."}, {"role": "assistant", "content": answer}]

    assert f"B8-smith-{form}" == prompt("B8", {"messages": json.dumps(turns)}).dataset


@pytest.mark.parametrize("messages", ['[{"role": "user", "content": "a"}', '{"a": 1}', '[], "b": []', "[NaN]", 4])
def test_swe_smith_messages_that_are_no_list_in_json_are_rejected(messages: object) -> None:
    assert Reject.WRONG_SHAPE == reason("B8-smith-xml", {"messages": messages})


@pytest.mark.parametrize("loose", ["no call", "another call", "no result"])
def test_a_smith_trajectory_ends_before_a_call_without_its_result_or_a_result_without_its_call(loose: str) -> None:
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


def test_a_smith_trajectory_that_begins_with_a_result_gives_no_prompt() -> None:
    assert Reject.NO_TURNS == reason("B8", {"messages": [CALLED[3], {"role": "assistant", "content": "x"}, CALLED[1]]})


def test_calls_of_one_turn_may_be_answered_in_any_order() -> None:
    call = CALLED[2]["tool_calls"][0]
    both = {**CALLED[2], "tool_calls": [call, {**call, "id": "c2"}]}
    messages = [CALLED[1], both, {**CALLED[3], "tool_call_ids": ["c2"]}, CALLED[3]]
    made = by_length("B8", ({"messages": messages, "traj_id": f"t{n}"} for n in range(30)))

    assert {1, 4} == set(made)


# messages


def test_messages_and_tools_are_taken_as_they_are() -> None:
    messages = [
        {"role": "ipython", "content": [{"type": "text", "text": "a"}], "name": None},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    made = prompt("messages", {"id": 4, "messages": messages, "tools": json.dumps([{"name": "x"}]), "label": "none"})

    assert ("4", "messages", ({"name": "x"},)) == (made.id, made.dataset, made.tools)
    assert [
        {"role": "ipython", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ] == list(made.messages)


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


# All of them


@pytest.mark.parametrize(
    "dataset, row",
    [
        ("B2", {"input": "a", "id": "\ud800"}),
        ("B6", {"messages": [{"role": "user", "content": "a"}], "prompt_id": "\udfff"}),
        ("B7", {"conversations": [{"from": "human", "value": "a"}], "id": "x\ud800"}),
    ],
)
def test_an_id_without_utf8_is_rejected_since_no_ledger_can_hold_it(dataset: str, row: dict[str, Any]) -> None:
    assert Reject.WRONG_SHAPE == reason(dataset, row)


def test_a_name_for_several_datasets_says_which_columns_it_wants() -> None:
    made = outcome("B3", {"text": "a"})

    assert isinstance(made, Rejected)
    assert "the row has none of these columns: problem, or instruction" == made.detail


def test_a_prompt_ends_where_an_answer_is_waited_for() -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user", "user"]

    assert [2, 5, 8] == open_questions([{"role": role} for role in roles])


def test_swe_sets_count_as_tool_data_where_no_text_tells() -> None:
    assert {"tools_declared"} == set(DATASETS["B8-smith-ticks"].defaults) == set(DATASETS["B8"].defaults)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
TURN = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("role", "from"), st.sampled_from(["user", "assistant", "human", "gpt", "system", "tool", "ai", 4])
        ),
        **dict.fromkeys(("content", "value", "text", "system_prompt"), st.text(max_size=6) | JSON),
        **dict.fromkeys(("tool_calls", "tool_call_ids", "name"), JSON),
    },
)
COLUMNS = (
    *("system", "chat", "input", "problem", "instruction", "messages", "conversations", "trajectory"),
    "tools",
    "id",
)


@given(st.sampled_from(sorted(DATASETS)), st.dictionaries(st.sampled_from(COLUMNS), JSON | st.lists(TURN, max_size=4)))
def test_whatever_a_row_holds_it_is_a_prompt_or_is_rejected(dataset: str, row: dict[str, Any]) -> None:
    made = outcome(dataset, row)

    assert isinstance(made, Rejected) or (made.id and made.messages and made.dataset)
