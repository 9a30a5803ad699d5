"""The audit: which features of prompts a contract must cover before they may be sent.

Guarantees: features are read off the structure of a prompt (roles, keys, lists), never guessed from its words. What
generate refuses before sending (an image, a text that spells a control token) needs no contract and is no feature here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

from pipeline.records import Prompt, ToolMode


class Feature(StrEnum):
    """What a prompt uses, by the name that a contract's `covers` gives."""

    SYSTEM = "system"
    MULTI_TURN = "multi_turn"
    TOOLS_DECLARED = "tools_declared"
    STRUCTURED_TOOLS = "structured_tools"
    TOOL_TRANSCRIPT = "tool_transcript"
    HISTORY_REASONING = "history_reasoning"


def features_of(prompt: Prompt, tool_mode: ToolMode) -> frozenset[Feature]:
    """The features of one prompt whose tools travel this way."""
    return frozenset(_features(prompt, tool_mode))


def features_of_all(prompts: Iterable[Prompt], tool_mode: ToolMode) -> frozenset[Feature]:
    """The features that any of the prompts has."""
    return frozenset(feature for prompt in prompts for feature in _features(prompt, tool_mode))


def _features(prompt: Prompt, tool_mode: ToolMode) -> Iterator[Feature]:
    roles = [message.get("role") for message in prompt.messages]
    history = [message for message in prompt.messages if message.get("role") == "assistant"]
    if "system" in roles:
        yield Feature.SYSTEM
    if roles.count("user") > 1 or history:
        yield Feature.MULTI_TURN
    if prompt.tools:
        yield Feature.STRUCTURED_TOOLS if tool_mode is ToolMode.STRUCTURED else Feature.TOOLS_DECLARED
    if "tool" in roles or any(message.get("tool_calls") for message in history):
        yield Feature.TOOL_TRANSCRIPT
    if any(message.get("reasoning") or message.get("reasoning_content") for message in history):
        yield Feature.HISTORY_REASONING
