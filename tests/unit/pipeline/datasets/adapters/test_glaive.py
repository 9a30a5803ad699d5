"""Glaive's rows, one by one, on rows of our own in the published schema; real rows are in tests/reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.fixtures.dataset_rows import by_length, prompt, reason, said
from pipeline.datasets.adapters import glaive
from pipeline.datasets.rows import Reject

OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
NO_OFFER = "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n"
FUNCTION = {"name": "lay_table", "description": "Lays it.", "parameters": {"type": "object"}}
END = " <|endoftext|>"


def offered(chat: str, *functions: dict[str, Any]) -> dict[str, Any]:
    texts = "\n\n".join(json.dumps(function, indent=4) for function in functions or (FUNCTION,))
    return {"system": f"{OFFER}{texts}\n", "chat": chat}


def called(call: str, after: str = "FUNCTION RESPONSE: {}\n\n\nASSISTANT: Done. <|endoftext|>\n\n\n") -> dict[str, Any]:
    return offered(f"USER: Lay it.\n\n\nASSISTANT: <functioncall> {call}{END}\n\n\n{after}")


def transcript(row: dict[str, Any]) -> list[dict[str, Any]]:
    """All that glaive's reader makes of a row, answers included."""
    return [dict(turn) for turn in glaive.conversation(row)]


@pytest.mark.parametrize(
    "call, arguments",
    [
        ("""{"name": "lay_table", "arguments": '{"seats": 4}'} """, '{"seats": 4}'),
        ("""{"name": "lay_table", "arguments": '{"for": "Ann's mother"}'} """, '{"for": "Ann\'s mother"}'),
        ("""{"name": "lay_table", "arguments": '{\n  "seats": 4\n}'} """, '{\n  "seats": 4\n}'),
        ("""{"name": "lay_table", "arguments": '{"seats":4,  "n": 1.0}'} """, '{"seats":4,  "n": 1.0}'),
        ("""{ "name": "lay_table",\n"arguments":  {"seats": "\\u00e9"} }""", '{"seats": "\\u00e9"}'),
        ("""{"name": "lay_table", "arguments": {"seats": 4}} """, '{"seats": 4}'),
        ("""{"name": "lay_table", "arguments": '{}'} """, "{}"),
    ],
)
def test_glaive_call_in_single_quotes_is_a_tool_call(call: str, arguments: str) -> None:
    turns = transcript(called(call))

    assert ["user", "assistant", "tool", "assistant"] == [turn["role"] for turn in turns]
    assert {"name": "lay_table", "arguments": arguments} == turns[1]["tool_calls"][0]["function"]
    assert turns[1]["tool_calls"][0]["id"] == turns[2]["tool_call_id"]


@pytest.mark.parametrize(
    "call",
    [
        """{"name": "lay_table", "arguments": '{"for": "Ann\\'s mother"}'} """,
        """{"name": "lay_table", "arguments": '{"seats": Infinity}'} """,
        """{"name": "lay_table", "arguments": '{"seats": 1e400}'} """,
        """{"name": "lay_table", "arguments": '{"seats": None}'} """,
        f"""{{"name": "lay_table", "arguments": '{'{"a":' * 900}1{"}" * 900}'}} """,
        """{"name": "lay_table", "arguments": '[4]'} """,
        """{"name": "lay_table", "arguments": null} """,
        """{"name": "lay_table", "parameters": '{"seats": 4}'} """,
        """{"name": "lay_table", "arguments": '{"seats": 4}'}} """,
        """{"name": "lay_table", "arguments": '{"seats": 4, "seats": 5}'} """,
        """{"name": "lay_table", "argum""",
        """{"name": "clear_table", "arguments": '{}'} """,
    ],
)
def test_glaive_conversation_ends_before_an_uncertain_call(call: str) -> None:
    assert [("user", "Lay it.")] == said(prompt("B1", called(call)))


def test_glaive_functions_become_tools_without_their_sentence() -> None:
    other = {"name": "clear_table", "description": "Clears it.", "parameters": {}}
    made = prompt("B1", offered("USER: Lay it.", FUNCTION, other))

    assert [("user", "Lay it.")] == said(made)
    assert [FUNCTION, other] == [tool["function"] for tool in made.tools]


def test_glaive_row_without_functions_keeps_its_system_text() -> None:
    made = prompt("B1", {"system": NO_OFFER, "chat": f"USER: Hi.\n\nASSISTANT: Hello.{END}\n\nUSER: Bye."})

    assert () == made.tools
    assert [
        ("system", "You are a helpful assistant, with no access to external functions."),
        ("user", "Hi."),
        ("assistant", "Hello."),
        ("user", "Bye."),
    ] == said(made)


def test_glaive_text_before_a_call_stays_beside_it() -> None:
    row = offered(
        "USER: Lay it.\n\n\nASSISTANT: At once.\n<functioncall> "
        """{"name": "lay_table", "arguments": '{}'} <|endoftext|>\n\n\nFUNCTION RESPONSE: {}\n\n\n"""
    )

    assert ["Lay it.", "At once.\n", "{}"] == [turn["content"] for turn in transcript(row)]


@pytest.mark.parametrize(
    "chat, turns",
    [
        (
            "USER: Say\nASSISTANT: twice.\n\nASSISTANT: Yes.",
            [("user", "Say\nASSISTANT: twice."), ("assistant", "Yes.")],
        ),
        ("USER: Hi.\n\n\nA: Hello. <|endoftext|>", [("user", "Hi."), ("assistant", "Hello.")]),
        ("USER: a\n\nUSER: b\n\nASSISTANT: c", [("user", "a"), ("user", "b"), ("assistant", "c")]),
        ("USER:  a \n b \n\nASSISTANT: \tc ", [("user", " a \n b "), ("assistant", "\tc ")]),
        ("USER: a <|endoftext|>\n\nASSISTANT: c  <|endoftext|>", [("user", "a"), ("assistant", "c ")]),
        ("USER: a\n\nASSISTANT: b\n\n\n\nUSER: c\n", [("user", "a"), ("assistant", "b\n\n"), ("user", "c\n")]),
        ("USER: a\n\n\n\nASSISTANT: b\n\n\n", [("user", "a\n"), ("assistant", "b")]),
        ("USER: a\n\nASSISTANT: b\n\nUSER: c <|endoftext|> d", [("user", "a"), ("assistant", "b")]),
        ("USER: a\n\nASSISTANT: on <|endoftext|> and on.\n\nUSER: b", [("user", "a")]),
        ("USER: a\n\nASSISTANT: b\n\nASSISTANT: c\n\nUSER: d", [("user", "a"), ("assistant", "b")]),
        ("USER: a\n\nASSISTANT: b\n\nFUNCTION RESPONSE: {}\n\nUSER: c", [("user", "a"), ("assistant", "b")]),
    ],
)
def test_glaive_turns_begin_at_heads_after_an_empty_line(chat: str, turns: list[tuple[str, str]]) -> None:
    assert turns == [(turn["role"], turn["content"]) for turn in transcript({"system": "", "chat": chat})]


def test_glaive_conversation_ends_before_an_unanswered_call() -> None:
    row = called("""{"name": "lay_table", "arguments": '{}'} """, "USER: And?\n\n\nASSISTANT: Done.")

    assert [("user", "Lay it.")] == said(prompt("B1", row))


def test_every_answer_of_glaive_rows_with_calls_is_drawn_by_some() -> None:
    """The draw is by the row's id, so over rows both the call and the last word are asked for."""
    rows = [called(f"""{{"name": "lay_table", "arguments": '{{"seats": {n}}}'}} """) for n in range(30)]

    assert {1, 3} == {len(prompt("B1", row).messages) for row in rows}
    assert [prompt("B1", row) for row in rows] == [prompt("B1", row) for row in rows]


@pytest.mark.parametrize(
    "row, why",
    [
        (offered("USER: a", FUNCTION, {**FUNCTION, "description": "Another."}), Reject.TOOL_TWICE),
        ({"system": OFFER, "chat": "USER: a"}, Reject.UNREADABLE_TOOLS),
        ({"system": f"{OFFER}{{'name': 'x'}}", "chat": "USER: a"}, Reject.UNREADABLE_TOOLS),
        ({"system": f'{OFFER}{{"description": "x"}}', "chat": "USER: a"}, Reject.UNREADABLE_TOOLS),
        (
            {"system": f"SYSTEM: You are a pirate {OFFER[36:]}{json.dumps(FUNCTION)}", "chat": "USER: a"},
            Reject.UNREADABLE_TOOLS,
        ),
        ({"system": "You are a pirate.", "chat": "USER: a"}, Reject.WRONG_SHAPE),
        ({"system": NO_OFFER, "chat": "USER: a <|endoftext|> b"}, Reject.NO_TURNS),
        ({"system": NO_OFFER, "chat": ""}, Reject.NO_TURNS),
        ({"system": NO_OFFER, "chat": "Hello"}, Reject.NO_TURNS),
        ({"system": NO_OFFER, "chat": "\n\nUSER: a\n\nASSISTANT: b"}, Reject.NO_TURNS),
        ({"system": NO_OFFER, "chat": "USER: \n\nASSISTANT: a"}, Reject.EMPTY_PROMPT),
        ({"system": None, "chat": "USER: a"}, Reject.WRONG_SHAPE),
    ],
)
def test_glaive_row_that_cannot_be_kept_right_is_rejected(row: dict[str, Any], why: Reject) -> None:
    assert why == reason("B1", row)


def test_the_same_function_twice_is_one() -> None:
    assert 1 == len(prompt("B1", offered("USER: a", FUNCTION, FUNCTION)).tools)


def test_llamafactory_shape_says_the_same_as_glaives_own() -> None:
    turns = [
        {"from": "human", "value": "Lay it."},
        {"from": "function_call", "value": '{"name": "lay_table", "arguments": {"seats": 4}}'},
        {"from": "observation", "value": "{}"},
        {"from": "gpt", "value": "Done."},
    ]
    tools = json.dumps([FUNCTION])
    made = by_length("B1-llamafactory", ({"conversations": turns, "tools": tools + " " * n} for n in range(40)))
    own = transcript(called("""{"name": "lay_table", "arguments": '{"seats": 4}'} """))

    assert [FUNCTION] == [tool["function"] for tool in made[1].tools]
    assert own[:3] == [dict(message) for message in made[3].messages]


def test_a_turn_of_another_shape_behind_a_bad_call_is_told() -> None:
    """The row was taken up to the call, and then blamed on this program."""
    calls = {"from": "function_call", "value": '{"name": "bake", "arguments": {"loaves": 2, {"x": 1}}'}
    turns = [{"from": "human", "value": "Bake."}, calls, {"from": "gpt"}]

    assert reason("B1-llamafactory", {"conversations": turns, "tools": "[]"}) is Reject.WRONG_SHAPE
