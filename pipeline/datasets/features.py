"""The audit of one prompt: which features it has, what shows each of them, and which a contract must cover.

Guarantees: tools are found by structure first and by markers bound to the role (`tool_signs`), and where a
dataset's text cannot tell, its default stands. How tools travel is part of the feature: those that a request carries as
`tools` are `structured_tools`, those that stand in the prompt's text `tools_declared`, and neither covers the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pipeline.datasets.tool_signs import Tool, kind_of, role_of, signs_of, texts_of
from pipeline.records import JsonObject, Prompt, ToolMode

LONG = 32_768
"""Characters of text from which a prompt is called long; about 8,000 tokens of English."""
IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
REASONING_KEYS = ("reasoning", "reasoning_content")
_THOUGHT = re.compile(r"\A\s*<think>|</think>")


class Feature(StrEnum):
    """What a prompt uses, by the name that a contract's `covers` gives."""

    SYSTEM = "system"
    MULTI_TURN = "multi_turn"
    TOOLS_DECLARED = "tools_declared"
    STRUCTURED_TOOLS = "structured_tools"
    TOOL_TRANSCRIPT = "tool_transcript"
    HISTORY_REASONING = "history_reasoning"
    SPECIAL_TEXT = "special_text"
    IMAGE = "image"
    LONG = "long"


ROW_BY_ROW = frozenset({Feature.SPECIAL_TEXT, Feature.IMAGE, Feature.LONG})
"""Features that no contract covers, since generate judges such rows one by one: it renders no image, sends no text that
spells a control token where served ids stay unknown, and nothing that is too long for the endpoint."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A feature, and what shows it: `what` in words, `where` in the prompt (empty for a dataset's default)."""

    feature: Feature
    what: str
    where: str = ""


def features_of(prompt: Prompt, tool_mode: ToolMode, defaults: frozenset[Feature] = frozenset()) -> frozenset[Feature]:
    """The features that a contract must cover, of one prompt whose tools travel this way.

    `defaults` are those of its dataset, where text cannot tell.
    """
    return frozenset(seen.feature for seen in findings_in(prompt, tool_mode, defaults))


def findings_in(prompt: Prompt, tool_mode: ToolMode, defaults: frozenset[Feature] = frozenset()) -> Iterator[Finding]:
    """The same with what shows each; a feature comes once for each thing that shows it."""
    yield from _by_roles(prompt)
    for sign in signs_of(prompt.messages, prompt.tools):
        yield Finding(_tool_feature(sign.kind, sign.where, tool_mode), sign.what, sign.where)
    yield from _reasoning(prompt)
    for feature in sorted(defaults):
        yield Finding(feature, "its dataset's default")


def shape_of(prompt: Prompt) -> Iterator[Finding]:
    """The features that no contract covers and that need no vocabulary: images and length."""
    size = 0
    for index, message in enumerate(prompt.messages):
        size += sum(map(len, texts_of(message)))
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if (kind := kind_of(part)) in IMAGE_PARTS:
                yield Finding(Feature.IMAGE, f"a part {kind}", f"messages[{index}].content")
    if size >= LONG:
        yield Finding(Feature.LONG, f"{size} characters")


def _by_roles(prompt: Prompt) -> Iterator[Finding]:
    roles = [role_of(message) for message in prompt.messages]
    if (system := next((role for role in roles if role in ("system", "developer")), None)) is not None:
        yield Finding(Feature.SYSTEM, f"the role {system}", f"messages[{roles.index(system)}].role")
    if "assistant" in roles:
        yield Finding(Feature.MULTI_TURN, "an answer in the history", f"messages[{roles.index('assistant')}].role")
    elif roles.count("user") > 1:
        yield Finding(Feature.MULTI_TURN, "more than one user turn", f"messages[{len(roles) - 1}].role")


def _tool_feature(kind: Tool, where: str, tool_mode: ToolMode) -> Feature:
    if kind is Tool.TRANSCRIPT:
        return Feature.TOOL_TRANSCRIPT
    as_tools = where == "tools" and tool_mode is ToolMode.STRUCTURED
    return Feature.STRUCTURED_TOOLS if as_tools else Feature.TOOLS_DECLARED


def _reasoning(prompt: Prompt) -> Iterator[Finding]:
    for index, message in enumerate(prompt.messages):
        if role_of(message) != "assistant":
            continue
        for key in REASONING_KEYS:
            if message.get(key):
                yield Finding(Feature.HISTORY_REASONING, f"the key {key}", f"messages[{index}].{key}")
        if _thinks(message):
            yield Finding(Feature.HISTORY_REASONING, "<think> in an answer's text", f"messages[{index}].content")


def _thinks(message: JsonObject) -> bool:
    return any("think>" in text and _THOUGHT.search(text) is not None for text in texts_of(message))
