"""Fields of messages: returned only where every engine prints the same of them."""

from __future__ import annotations

import pytest

from pipeline.formats.messages import calls_of, content_of, reasoning_of, role_of, with_parsed_arguments
from pipeline.records import Json, JsonObject, Prompt, Reason, RefusedError

pytestmark = pytest.mark.contract

CALL: Json = {"function": {"name": "f", "arguments": '{"a": 1}'}}


def refused(work: object) -> str:
    """The detail of the refusal that `work` ends in."""
    with pytest.raises(RefusedError) as caught:
        work()  # type: ignore[operator]
    assert Reason.PROMPT_UNSUPPORTED is caught.value.refusal.reason
    return caught.value.refusal.detail


@pytest.mark.parametrize("role", [None, 7, "", "critic", "User"])
def test_a_role_is_one_that_the_template_knows(role: Json) -> None:
    assert "user" == role_of({"role": "user"}, ("system", "user"))
    assert f"a message has the role {role!r}, known are system, user" == refused(
        lambda: role_of({"role": role}, ("system", "user"))
    )


@pytest.mark.parametrize(
    "message, expected",
    [({"content": "a"}, "a"), ({"content": ""}, ""), ({"content": None, "tool_calls": [CALL]}, "")],
)
def test_content_is_text_or_null_beside_calls(message: JsonObject, expected: str) -> None:
    assert expected == content_of(message)


@pytest.mark.parametrize(
    "message, kind",
    [
        ({"content": None}, "NoneType"),
        ({"content": None, "tool_calls": []}, "NoneType"),
        ({"content": [], "tool_calls": [CALL]}, "list"),
        ({"content": 1}, "int"),
    ],
)
def test_other_content_is_refused(message: JsonObject, kind: str) -> None:
    assert f"content is {kind}, not text" == refused(lambda: content_of(message))


@pytest.mark.parametrize(
    "message, content, expected",
    [
        ({}, "plain", ""),
        ({"reasoning_content": "r"}, "plain", "r"),
        ({"reasoning_content": "r"}, "a</think>b", "r"),
        ({"reasoning": "", "reasoning_content": "r"}, "plain", "r"),
    ],
)
def test_reasoning_has_one_name(message: JsonObject, content: str, expected: str) -> None:
    assert expected == reasoning_of(message, content, "</think>")


@pytest.mark.parametrize(
    "message, content",
    [
        ({"reasoning": "r"}, "plain"),
        ({"reasoning": "r", "reasoning_content": "r"}, "plain"),
        ({}, "a</think>b"),
        ({"reasoning_content": None}, "a</think>b"),
    ],
)
def test_reasoning_that_stands_elsewhere_is_refused(message: JsonObject, content: str) -> None:
    said = "earlier reasoning stands elsewhere than in reasoning_content"

    assert said == refused(lambda: reasoning_of(message, content, "</think>"))


@pytest.mark.parametrize("value, kind", [(None, "NoneType"), (["r"], "list"), (1, "int")])
def test_reasoning_of_another_type_is_refused(value: Json, kind: str) -> None:
    found = refused(lambda: reasoning_of({"reasoning_content": value}, "plain", "</think>"))

    assert f"reasoning_content is {kind}, not text" == found


def test_calls_are_their_names_texts_and_arguments() -> None:
    assert [("f", '{"a": 1}', {"a": 1})] == list(calls_of({"tool_calls": [CALL]}))
    assert [] == list(calls_of({}))
    assert [("f", '{"a":1}', {"a": 1})] == list(
        calls_of({"tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]}, as_text=False)
    )


@pytest.mark.parametrize(
    "calls, said",
    [
        ("f", "tool_calls is no list"),
        ([7], "a tool call has no function with a name"),
        ([{"function": None}], "a tool call has no function with a name"),
        ([{"function": {"name": 1, "arguments": "{}"}}], "a tool call has no function with a name"),
        ([{"function": {"name": "f", "arguments": {}}}], "a tool call's arguments are no string"),
        ([{"function": {"name": "f", "arguments": "{"}}], "a tool call's arguments are no JSON: '{'"),
        ([{"function": {"name": "f", "arguments": "[]"}}], "engines that parse a call's arguments write '[]' in"),
        ([{"function": {"name": "f", "arguments": '{"a":1}'}}], "engines that parse a call's arguments write"),
    ],
)
def test_calls_that_engines_write_in_two_ways_are_refused(calls: Json, said: str) -> None:
    assert refused(lambda: list(calls_of({"tool_calls": calls}))).startswith(said)


def test_arguments_become_objects_where_a_template_wants_them() -> None:
    plain: JsonObject = {"role": "user", "content": "a"}
    calling: JsonObject = {"role": "assistant", "content": None, "tool_calls": [CALL]}

    first, second = with_parsed_arguments(Prompt("r", (plain, calling))).messages

    assert plain == first
    assert [{"function": {"name": "f", "arguments": {"a": 1}}}] == second["tool_calls"]
