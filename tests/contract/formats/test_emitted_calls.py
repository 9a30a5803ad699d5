"""Calls of emitted ids beside parsed ones: JSON by type and spelling, untyped parameters, cut calls."""

from __future__ import annotations

import pytest

from pipeline.formats.emitted_calls import EmittedCall, is_same_json, raw_members

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    "emitted, shown",
    [
        ("1", "true"),
        ("0", "false"),
        ("1", "1.0"),
        ("1", '"1"'),
        ("NaN", '"NaN"'),
        ("Infinity", "NaN"),
        ("null", '"null"'),
        ("9007199254740993", "9007199254740992"),
        ("[]", "{}"),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1, "a": 2}', '{"a": 1}'),
        ('"a "', '"a"'),
    ],
)
def test_json_of_another_type_or_spelling_differs(emitted: str, shown: str) -> None:
    assert not is_same_json(emitted, shown)
    assert not EmittedCall("f", f'{{"v": {emitted}}}').says(f'{{"v": {shown}}}')


@pytest.mark.parametrize(
    "emitted, shown",
    [
        ('{"a": [1, 2.50]}', '{ "a":[1,2.50] }'),
        ('{"a": 1, "b": "\\u00e9"}', '{"b": "é", "a": 1}'),
        ("1e2", "100.0"),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("NaN", "NaN"),
    ],
)
def test_json_written_anew_is_the_same(emitted: str, shown: str) -> None:
    assert is_same_json(emitted, shown)


@pytest.mark.parametrize(
    "text, shown, expected",
    [
        ("1", "1", True),
        ("1", '"1"', True),
        ("1", "true", False),
        ("True", "true", True),
        ("\nhi\n", '"hi"', True),
        ("hi", '"ho"', False),
        ('{"x": 1}', '{"x": true}', False),
        ("007", '"007"', True),
        ("007", "7", False),
    ],
)
def test_untyped_parameters_agree_as_text_or_json(text: str, shown: str, expected: bool) -> None:
    """A parser guesses the type of a parameter that is text."""
    assert expected is EmittedCall("f", parameters=(("v", text),)).says(f'{{"v": {shown}}}')


def test_parameters_must_have_the_same_names() -> None:
    call = EmittedCall("f", parameters=(("a", "1"), ("b", "2")))

    assert call.says('{"b": 2, "a": 1}')
    assert not call.says('{"a": 1}')
    assert not call.says('{"a": 1, "b": 2, "c": 3}')


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1, "a": 2}', "", "1"])
def test_what_is_no_object_has_no_members(text: str) -> None:
    assert raw_members(text) is None


def test_no_arguments_are_an_empty_object() -> None:
    assert [True, True, False] == [EmittedCall("f", " ").says(shown) for shown in ("", "{}", '{"a": 1}')]
