"""Adapters, row by row, on rows of our own in the published schemas; real rows are in tests/reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fixtures.dataset_rows import outcome, prompt, reason, said
from pipeline.datasets.conversation import open_questions
from pipeline.datasets.fidelity.compare import differences
from pipeline.datasets.registry import DATASETS, Turns
from pipeline.datasets.rows import Raw, Reject, Rejected

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


def test_mixture_of_thoughts_drops_answer_and_foreign_switch() -> None:
    turns = [
        {"role": "system", "content": "detailed thinking on"},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "<think>\n.\n</think>\n\nSo."},
    ]

    assert [("user", "Why?")] == said(prompt("B4", {"messages": turns, "num_tokens": 30_000}))


def test_openthoughts_drops_the_system_text_of_another_model() -> None:
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


# All of them


@pytest.mark.parametrize(
    "dataset, row",
    [
        ("B2", {"input": "a", "id": "\ud800"}),
        ("B6", {"messages": [{"role": "user", "content": "a"}], "prompt_id": "\udfff"}),
        ("B7", {"conversations": [{"from": "human", "value": "a"}], "id": "x\ud800"}),
    ],
)
def test_an_id_without_utf8_is_rejected(dataset: str, row: dict[str, Any]) -> None:
    assert Reject.WRONG_SHAPE == reason(dataset, row)


def test_a_name_for_several_datasets_says_which_columns_it_wants() -> None:
    made = outcome("B3", {"text": "a"})

    assert isinstance(made, Rejected)
    assert "the row has none of these columns: problem, or instruction" == made.detail


def test_a_prompt_ends_where_an_answer_is_waited_for() -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user", "user"]

    assert [2, 5, 8] == open_questions([{"role": role} for role in roles])


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
    """And a prompt says what the row says."""
    made = outcome(dataset, row)

    assert isinstance(made, Rejected) or (made.id and made.messages and made.dataset)
    assert isinstance(made, Rejected) or [] == differences(dataset, row, made)


PIECES = st.sampled_from(
    [
        *(
            "USER: ",
            "ASSISTANT: ",
            "A: ",
            "FUNCTION RESPONSE: ",
            " <|endoftext|>",
            "<|endoftext|>",
            "\n",
            "\n\n",
            "\n\n\n",
        ),
        *("a", " ", "1 / 2\n", "<functioncall> ", """{"name": "bake", "arguments": '{"n": 1}'}""", "{}"),
        """<functioncall> {"name": "bake", "arguments": {"n":1}} <|endoftext|>\n\n\nFUNCTION RESPONSE: x\n\n\n""",
    ]
)
OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"


@given(st.lists(PIECES, max_size=14).map("".join), st.booleans())
def test_glaives_texts_say_what_their_rows_say(chat: str, offers: bool) -> None:
    row = {"system": OFFER + '{"name": "bake"}\n' if offers else "SYSTEM: a\n\n\n", "chat": f"USER: {chat}"}
    asked = DATASETS["B1"].asked(Raw(row, "rows", 1), Turns.ALL)

    assert isinstance(asked, Rejected) or [] == [what for one in asked for what in differences("B1", row, one)]
