"""Prompts of other families, rendered here, by the model's own template, and by the `renderers` package: equal.

The vocabularies come from `python -m harness vocabularies`; `renderers` is an oracle where it is installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.formats.tagged import TaggedFormat
from pipeline.records import Json, JsonObject, Prompt, RefusedError

FAMILIES = ("deepseek-r1", "deepseek-v3.1", "glm-4.7", "glm-4.7-flash", "glm-5", "qwen3", "qwen3.5")

RENDERERS: Mapping[str, tuple[str, str]] = {
    "deepseek-r1": ("renderers.deepseek_r1", "DeepSeekR1Renderer"),
    "glm-4.5": ("renderers.glm45", "GLM45Renderer"),
    "glm-4.7": ("renderers.glm5", "GLM5Renderer"),
    "glm-4.7-flash": ("renderers.glm5", "GLM5Renderer"),
    "glm-5": ("renderers.glm5", "GLM5Renderer"),
    "qwen3": ("renderers.qwen3", "Qwen3Renderer"),
    "qwen3.5": ("renderers.qwen35", "Qwen35Renderer"),
}

TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter — für eine Stadt",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SYSTEM: JsonObject = {"role": "system", "content": "Be brief."}
USER: JsonObject = {"role": "user", "content": "What's the weather in Köln?  \n"}
ANSWER: JsonObject = {"role": "assistant", "content": "Rain.", "reasoning_content": "It rains."}
BARE: JsonObject = {"role": "assistant", "content": "Sun."}
AGAIN: JsonObject = {"role": "user", "content": "And 東京?"}


def _calls(*arguments: Mapping[str, Json]) -> list[Json]:
    written = [json.dumps(given, ensure_ascii=False) for given in arguments]
    return [
        {"id": f"c{n}", "type": "function", "function": {"name": "get_weather", "arguments": text}}
        for n, text in enumerate(written)
    ]


CALL: JsonObject = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "Look it up.",
    "tool_calls": _calls({"city": "Köln"}),
}
TWO_CALLS: JsonObject = {
    "role": "assistant",
    "content": "Both.",
    "tool_calls": _calls({"city": "Köln", "days": 3}, {"city": "東京", "exact": True, "at": [1.5, None]}),
}
RESULT: JsonObject = {"role": "tool", "tool_call_id": "c0", "content": '{"sky": "grey"}'}

CONVERSATIONS: Mapping[str, tuple[JsonObject, ...]] = {
    "one question": (USER,),
    "system": (SYSTEM, USER),
    "a turn with thinking": (SYSTEM, USER, ANSWER, AGAIN),
    "a turn without thinking": (USER, BARE, AGAIN),
    "three turns": (USER, ANSWER, AGAIN, BARE, USER),
    "a call and its result": (USER, CALL, RESULT),
    "a call, its result and an answer": (SYSTEM, USER, CALL, RESULT, ANSWER, AGAIN),
    "two calls and two results": (USER, TWO_CALLS, RESULT, RESULT),
    "two calls in a row": (USER, CALL, RESULT, TWO_CALLS, RESULT, RESULT),
    "calls, an answer, calls again and an answer": (
        USER,
        TWO_CALLS,
        RESULT,
        RESULT,
        BARE,
        USER,
        CALL,
        RESULT,
        BARE,
        AGAIN,
    ),
    "a late system message": (USER, BARE, SYSTEM, AGAIN),
    "empty content": ({"role": "user", "content": ""},),
}


EXPLAINED: Mapping[tuple[str, str], str] = {
    ("deepseek-r1", "a late system message"): "the template joins system messages at the front, the package does not",
    ("deepseek-r1", "calls, an answer, calls again and an answer"): "the template puts a line feed between calls",
    ("glm-4.5", "two calls and two results"): "the template puts a line feed before each call, also after text",
    ("glm-4.5", "two calls in a row"): "the same",
    ("glm-4.5", "calls, an answer, calls again and an answer"): "the same",
}
"""Where the package differs from the model's own template, with which ours agrees."""


def label_of(prompt: Prompt) -> str:
    """Which conversation this is."""
    return next(label for label, messages in CONVERSATIONS.items() if messages == prompt.messages)


@cache
def family(name: str) -> Format:
    """The family on its real vocabulary, or a skip that says how to get it."""
    for named in filter(None, os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep)):
        if (Path(named) / name / "tokenizer.json").is_file():
            return open_format(name)
    pytest.skip(f"no {name} in $DRAFTER_GATE_TOKENIZERS; python -m harness vocabularies unpacks it")


def prompts(names: Iterable[str], modes: tuple[bool, ...]) -> list[Any]:
    """Every conversation that the family's template can say, with and without tools, in these modes of thinking."""
    return [
        pytest.param(name, prompt, id=f"{name}-{label}{' tools' * bool(tools)}-{thinking}")
        for name in names
        for label, messages in CONVERSATIONS.items()
        for tools in ((), (TOOL,))
        for thinking in modes
        if can(name, prompt := Prompt("r", messages, tools, thinking))
    ]


def can(name: str, prompt: Prompt) -> bool:
    """DeepSeek's templates declare no tools, and say nothing after a tool's answer; R1 always thinks.

    Qwen3.5's knows one system message, the first.
    """
    if name == "qwen3.5" and SYSTEM in prompt.messages[1:]:
        return False
    if not name.startswith("deepseek"):
        return True
    return not prompt.tools and prompt.messages[-1]["role"] == "user" and (prompt.thinking or name != "deepseek-r1")


@pytest.mark.parametrize("name, prompt", prompts(FAMILIES, (True, False)))
def test_a_prompt_equals_the_models_own_template(name: str, prompt: Prompt) -> None:
    """A prompt is rendered as the models own template renders it."""
    fmt = family(name)
    assert isinstance(fmt, TaggedFormat)
    assert fmt.template is not None
    asked, variables = fmt.dialect.template_inputs(prompt)

    ids = fmt.render(prompt)

    assert fmt.template.text(asked, **variables) == fmt.tokenizer.decode_text(ids)
    assert list(ids) == fmt.tokenizer.encode_prompt(fmt.template.text(asked, **variables))


@pytest.mark.parametrize("name, prompt", prompts(RENDERERS, (True,)))
def test_a_prompt_is_rendered_as_another_package_renders_it(name: str, prompt: Prompt) -> None:
    fmt = family(name)
    renderer = other(name, fmt)
    asked = fmt.dialect.template_inputs(prompt)[0] if isinstance(fmt, TaggedFormat) else prompt

    theirs = renderer.render_ids(
        [dict(message) for message in asked.messages],
        tools=[dict(tool) for tool in asked.tools] or None,
        add_generation_prompt=True,
    )

    explained = EXPLAINED.get((name, label_of(prompt)))
    assert (explained is None) == (list(fmt.render(prompt)) == theirs), fmt.tokenizer.decode_text(theirs)


_RENDERERS: dict[str, Any] = {}


def other(name: str, fmt: Format) -> Any:  # noqa: ANN401 — a class of a package without types
    """The package's renderer of this family on the same vocabulary."""
    if name not in _RENDERERS:
        module, kind = RENDERERS[name]
        transformers = pytest.importorskip("transformers")
        made = getattr(pytest.importorskip(module, reason="the oracle is not installed"), kind)
        file = fmt.tokenizer.directory / "tokenizer.json"
        _RENDERERS[name] = made(transformers.PreTrainedTokenizerFast(tokenizer_file=str(file)))
    return _RENDERERS[name]


def test_another_releases_template_is_noticed_at_once() -> None:
    """A template of another release is noticed at the first prompt."""
    fmt = family("qwen3")
    assert isinstance(fmt, TaggedFormat)
    assert fmt.template is not None
    told = replace(
        fmt, dialect=replace(fmt.dialect, template_inputs=lambda prompt: (prompt, {"enable_thinking": False}))
    )
    with pytest.raises(RefusedError, match="renders 13 tokens, this format 9"):
        told.render(Prompt("r", ({"role": "user", "content": "hi"},)))


@pytest.mark.parametrize(
    "prompt, said",
    [
        (Prompt("r", (USER,), (TOOL,)), "declares no tools"),
        (Prompt("r", (USER, CALL, RESULT)), "the last message is not the user's"),
        (Prompt("r", (USER, {"role": "assistant", "content": "", "tool_calls": []}, USER)), "there and empty"),
        (Prompt("r", (USER, {"role": "assistant", "content": "a</think>b"}, USER)), "holds its thinking"),
        (Prompt("r", (USER,), thinking=False), "R1 always thinks"),
    ],
    ids=["tools", "tool last", "no calls", "thinking in content", "instant"],
)
def test_deepseek_refuses_what_its_template_does_not_say(prompt: Prompt, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        family("deepseek-r1").render(prompt)
