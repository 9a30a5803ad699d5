"""The features of one prompt."""

from __future__ import annotations

import pytest

from pipeline.datasets.features import LONG, Feature, features_of, findings_in, shape_of
from pipeline.records import JsonObject, Prompt, ToolMode

pytestmark = pytest.mark.contract

USER: JsonObject = {"role": "user", "content": "Bread?"}
ANSWER: JsonObject = {"role": "assistant", "content": "Yes."}
TOOL: JsonObject = {"type": "function", "function": {"name": "bake", "parameters": {"type": "object"}}}
TOLD: JsonObject = {"role": "system", "content": "<tools>\n[{}]\n</tools>"}


def found(*messages: JsonObject, tools: tuple[JsonObject, ...] = (), mode: ToolMode = ToolMode.RAW) -> list[str]:
    return sorted(features_of(Prompt("a", messages, tools), mode))


@pytest.mark.parametrize(
    "messages, features",
    [
        ((USER,), []),
        (({"role": "system", "content": "Brief."}, USER), ["system"]),
        (({"role": "developer", "content": "Brief."}, USER), ["system"]),
        ((USER, ANSWER, USER), ["multi_turn"]),
        ((USER, USER), ["multi_turn", "turn_order"]),
        ((USER, {**ANSWER, "reasoning": "Bread."}, USER), ["history_reasoning", "multi_turn"]),
        ((USER, {**ANSWER, "reasoning_content": "Bread."}, USER), ["history_reasoning", "multi_turn"]),
        ((USER, {**ANSWER, "reasoning_content": ""}, USER), ["multi_turn"]),
        ((USER, {**ANSWER, "content": "<think>\nBread.\n</think>\nYes."}, USER), ["history_reasoning", "multi_turn"]),
        ((USER, {"role": "tool", "content": "warm"}), ["tool_transcript", "turn_order"]),
        ((TOLD, USER), ["system", "tools_declared"]),
    ],
)
def test_features_are_read_off_roles_keys_and_text(messages: tuple[JsonObject, ...], features: list[str]) -> None:
    assert features == found(*messages)


SYSTEM: JsonObject = {"role": "system", "content": "Brief."}
CALLING: JsonObject = {**ANSWER, "tool_calls": [{"id": "a"}, {"id": "b"}]}
RESULT: JsonObject = {"role": "tool", "tool_call_id": "a", "content": "warm"}


@pytest.mark.parametrize(
    "messages, what, where",
    [
        ((USER, ANSWER, USER), None, ""),
        ((SYSTEM, USER, CALLING, RESULT, RESULT, ANSWER, USER), None, ""),
        ((USER, CALLING, RESULT, CALLING, RESULT), None, ""),
        ((USER, USER), "two user turns in a row", "messages[1].role"),
        ((USER, ANSWER, ANSWER, USER), "two assistant turns in a row", "messages[2].role"),
        ((SYSTEM, SYSTEM, USER), "two system turns in a row", "messages[1].role"),
        ((SYSTEM, {**SYSTEM, "role": "developer"}, USER), "two system turns in a row", "messages[1].role"),
        ((USER, ANSWER, SYSTEM, USER), "a system turn behind another's", "messages[2].role"),
        ((ANSWER, USER), "an answer before any question", "messages[0].role"),
        ((SYSTEM, ANSWER, USER), "an answer before any question", "messages[1].role"),
        ((USER, RESULT), "a tool's result behind no call", "messages[1].role"),
        ((USER, CALLING, RESULT, ANSWER, RESULT), "a tool's result behind no call", "messages[4].role"),
    ],
)
def test_turns_that_do_not_alternate_are_a_feature(
    messages: tuple[JsonObject, ...], what: str | None, where: str
) -> None:
    found = [each for each in findings_in(Prompt("a", messages), ToolMode.RAW) if each.feature is Feature.TURN_ORDER]

    assert ([] if what is None else [(what, where)]) == [(each.what, each.where) for each in found]


def test_how_tools_travel_is_part_of_the_feature() -> None:
    """One contract never covers the other."""
    assert ["tools_declared"] == found(USER, tools=(TOOL,))
    assert ["tools_declared"] == found(USER, tools=(TOOL,), mode=ToolMode.NONE)
    assert ["structured_tools"] == found(USER, tools=(TOOL,), mode=ToolMode.STRUCTURED)


def test_tools_in_the_text_stay_in_the_text_whatever_the_mode() -> None:
    """Tools both ways need both contracts: the model may answer in either."""
    expected = ["structured_tools", "system", "tools_declared"]

    assert expected == found(TOLD, USER, tools=(TOOL,), mode=ToolMode.STRUCTURED)


def test_a_datasets_default_stands_where_text_cannot_tell() -> None:
    plain = Prompt("a", (USER,))

    assert {Feature.TOOLS_DECLARED} == features_of(plain, ToolMode.RAW, frozenset({Feature.TOOLS_DECLARED}))
    assert set() == features_of(plain, ToolMode.RAW)


def test_each_feature_says_what_shows_it() -> None:
    seen = [(each.feature, each.what, each.where) for each in findings_in(Prompt("a", (TOLD, USER)), ToolMode.RAW)]

    assert [
        ("system", "the role system", "messages[0].role"),
        ("tools_declared", "a <tools> section", "messages[0].content"),
    ] == seen


def test_a_part_whose_type_is_no_text_is_no_image() -> None:
    assert [] == list(shape_of(Prompt("a", ({"role": "user", "content": [{"type": ["image"], "text": "a"}]},))))


def test_images_and_length_are_seen_and_need_no_contract() -> None:
    picture: JsonObject = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}
    long: JsonObject = {"role": "user", "content": "x" * LONG}

    assert ["image"] == [each.feature for each in shape_of(Prompt("a", (picture,)))]
    assert ["long"] == [each.feature for each in shape_of(Prompt("a", (long,)))]
    assert [] == list(shape_of(Prompt("a", (USER,))))
    assert [] == found(picture)
