"""Hypothesis strategies for conversations, to compare rendered prompts.

Guarantees: each is cut after any of its messages, also between the results of two calls. Its texts hold no `<` and no
`[`, with which most control tokens begin: renderers read those that a text spells in different ways.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st

from harness.strategies.completions import plain_texts
from pipeline.records import Prompt

# Strategies made once: hypothesis examines each anew, which takes as long as drawing from it.


@cache
def _texts() -> st.SearchStrategy[str]:
    return plain_texts(min_size=1)


_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "string", "description": "Where."},
    {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
    {"type": "number"},
    {"type": ["string", "null"]},
    {"type": "boolean", "description": "Two\nlines."},
    {"enum": ["a", 1, None]},
    {"type": "array", "items": {"type": "string", "description": "One."}},
    {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}]},
    {"type": "object", "properties": {"y": {"type": "string"}}, "additionalProperties": False},
)


@cache
@st.composite
def _tools(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(_SCHEMAS), max_size=3))
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    function = {"name": draw(st.sampled_from(["f", "get_weather"])), "parameters": parameters}
    if draw(st.booleans()):
        function["description"] = draw(_texts())
    return {"type": "function", "function": function}


@cache
def _calls(first: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    def call(index: int, arguments: dict[str, str]) -> dict[str, Any]:
        function = {"name": "f", "arguments": json.dumps(arguments)}
        return {"id": f"functions.f:{index}", "type": "function", "function": function}

    made = st.lists(st.dictionaries(st.sampled_from("xy"), _texts(), max_size=2), min_size=1, max_size=2)
    return made.map(lambda drawn: [call(first + index, arguments) for index, arguments in enumerate(drawn)])


@st.composite
def conversations(draw: st.DrawFn) -> Prompt:
    """Draw a conversation that waits for its next answer.

    Turns of text, and tool loops with their results.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw(_texts())}] if draw(st.booleans()) else []
    called = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(_texts())})
        for _ in range(draw(st.integers(0, 2))):
            calls = draw(_calls(called))
            called += len(calls)
            messages.append({**draw(_answers()), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": one["id"], "content": draw(_texts())} for one in calls]
        messages.append(draw(_answers()))
    kept = messages[: draw(st.integers(1, len(messages)))]
    declared = draw(st.lists(_tools(), max_size=2))
    return Prompt("drawn", tuple(kept), tuple(declared), thinking=draw(st.booleans()))


@cache
def _answers() -> st.SearchStrategy[dict[str, Any]]:
    def answer(content: str, reasoning: str | None) -> dict[str, Any]:
        thought = {} if reasoning is None else {"reasoning_content": reasoning}
        return {"role": "assistant", "content": content, **thought}

    return st.builds(answer, plain_texts(), st.none() | _texts())
