"""Find the features of one prompt, and what shows each.

Guarantees: tools are found by structure first, then by markers bound to the role (`tool_signs`); where a dataset's text
cannot tell, its default holds. How tools travel is part of the feature: those that a request carries as `tools` are
`structured_tools`, those that stand in the prompt's text `tools_declared`, and neither covers the other. Turns that do
not alternate as templates expect are a feature too (`turn_order`): engines join, drop or refuse them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.base.secret_shapes import secret_of
from pipeline.datasets.tool_signs import Tool, kind_of, role_of, signs_of, texts_of
from pipeline.records import JsonObject, Prompt, ToolMode

LONG = 32_768
"""Characters of text from which a prompt is long; about 8,000 tokens of English."""
IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
REASONING_KEYS = ("reasoning", "reasoning_content")
_THOUGHT = re.compile(r"\A\s*<think>|</think>")


class Feature(StrEnum):
    """What a prompt uses, named as in a contract's `covers`."""

    SYSTEM = "system"
    MULTI_TURN = "multi_turn"
    TURN_ORDER = "turn_order"
    TOOLS_DECLARED = "tools_declared"
    STRUCTURED_TOOLS = "structured_tools"
    TOOL_TRANSCRIPT = "tool_transcript"
    HISTORY_REASONING = "history_reasoning"
    SPECIAL_TEXT = "special_text"
    SECRET_SHAPE = "secret_shape"  # noqa: S105 - the name of a feature
    IMAGE = "image"
    LONG = "long"


ROW_BY_ROW = frozenset({Feature.SPECIAL_TEXT, Feature.SECRET_SHAPE, Feature.IMAGE, Feature.LONG})
"""Features that no contract covers, since generate judges such rows one by one.

It renders no image, sends no text that spells a control token where served ids stay unknown, nothing that has the shape
of a key unless it may, and nothing that is too long for the endpoint.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A feature, and what shows it.

    `what` is in words, `where` a place in the prompt (empty for a dataset's default).
    """

    feature: Feature
    what: str
    where: str = ""


def features_of(prompt: Prompt, tool_mode: ToolMode, defaults: frozenset[Feature] = frozenset()) -> frozenset[Feature]:
    """Return the features of a prompt that contracts must cover.

    `tool_mode` is how its tools travel; `defaults` are its dataset's, where text cannot tell.
    """
    return frozenset(finding.feature for finding in findings_in(prompt, tool_mode, defaults))


def findings_in(prompt: Prompt, tool_mode: ToolMode, defaults: frozenset[Feature] = frozenset()) -> Iterator[Finding]:
    """Yield the same features with each thing that shows one."""
    yield from _findings_in_roles(prompt)
    yield from _turns_out_of_order(prompt.messages)
    for sign in signs_of(prompt.messages, prompt.tools):
        if sign.kind is Tool.TRANSCRIPT:
            feature = Feature.TOOL_TRANSCRIPT
        elif sign.where == "tools" and tool_mode is ToolMode.STRUCTURED:
            feature = Feature.STRUCTURED_TOOLS
        else:
            feature = Feature.TOOLS_DECLARED
        yield Finding(feature, sign.what, sign.where)
    yield from _reasoning_in_history(prompt)
    for feature in sorted(defaults):
        yield Finding(feature, "its dataset's default")


def shape_of(prompt: Prompt) -> Iterator[Finding]:
    """Yield what no contract covers: keys, images, length."""
    if (secret := secret_of(prompt)) is not None:
        yield Finding(Feature.SECRET_SHAPE, f"the shape of a key ({secret[0]})", secret[1])
    size = 0
    for index, message in enumerate(prompt.messages):
        size += sum(map(len, texts_of(message)))
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if (kind := kind_of(part)) in IMAGE_PARTS:
                yield Finding(Feature.IMAGE, f"a part {kind}", f"messages[{index}].content")
    if size >= LONG:
        yield Finding(Feature.LONG, f"{size} characters")


def _findings_in_roles(prompt: Prompt) -> Iterator[Finding]:
    roles = [role_of(message) for message in prompt.messages]
    if (system := next((role for role in roles if role in ("system", "developer")), None)) is not None:
        yield Finding(Feature.SYSTEM, f"the role {system}", f"messages[{roles.index(system)}].role")
    if "assistant" in roles:
        yield Finding(Feature.MULTI_TURN, "an answer in the history", f"messages[{roles.index('assistant')}].role")
    elif roles.count("user") > 1:
        yield Finding(Feature.MULTI_TURN, "more than one user turn", f"messages[{len(roles) - 1}].role")


def _turns_out_of_order(messages: Sequence[JsonObject]) -> Iterator[Finding]:
    """Yield the first turn that stands where templates expect another.

    That is one of the same role as the turn before, a system's turn behind another, an answer before any question, and
    a tool's result behind no call.
    """
    roles = ["system" if role_of(message) == "developer" else role_of(message) for message in messages]
    called = False
    for at, (role, before) in enumerate(zip(roles, ["", *roles], strict=False)):
        called = bool(messages[at].get("tool_calls")) or (called and role == "tool")
        if role == before != "tool":
            what = f"two {role} turns in a row"
        elif role == "system" and at:
            what = "a system turn behind another's"
        elif role == "assistant" and before in ("", "system"):
            what = "an answer before any question"
        elif role == "tool" and not called:
            what = "a tool's result behind no call"
        else:
            continue
        yield Finding(Feature.TURN_ORDER, what, f"messages[{at}].role")
        return


def _reasoning_in_history(prompt: Prompt) -> Iterator[Finding]:
    for index, message in enumerate(prompt.messages):
        if role_of(message) != "assistant":
            continue
        for key in REASONING_KEYS:
            if message.get(key):
                yield Finding(Feature.HISTORY_REASONING, f"the key {key}", f"messages[{index}].{key}")
        if any("think>" in text and _THOUGHT.search(text) is not None for text in texts_of(message)):
            yield Finding(Feature.HISTORY_REASONING, "<think> in an answer's text", f"messages[{index}].content")
