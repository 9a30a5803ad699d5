"""The features of one prompt."""

from __future__ import annotations

import pytest

from pipeline.datasets.features import LONG, Feature, features_of, findings_in, shape_of
from pipeline.records import JsonObject, Prompt, ToolMode

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
        ((USER, USER), ["multi_turn"]),
        ((USER, {**ANSWER, "reasoning": "Bread."}, USER), ["history_reasoning", "multi_turn"]),
        ((USER, {**ANSWER, "reasoning_content": "Bread."}, USER), ["history_reasoning", "multi_turn"]),
        ((USER, {**ANSWER, "reasoning_content": ""}, USER), ["multi_turn"]),
        ((USER, {**ANSWER, "content": "<think>\nBread.\n</think>\nYes."}, USER), ["history_reasoning", "multi_turn"]),
        ((USER, {"role": "tool", "content": "warm"}), ["tool_transcript"]),
        ((TOLD, USER), ["system", "tools_declared"]),
    ],
)
def test_features_are_read_off_roles_keys_and_text(messages: tuple[JsonObject, ...], features: list[str]) -> None:
    assert features == found(*messages)


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
