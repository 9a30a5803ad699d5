"""The request's body: what is always said, what only where asked, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.tiny_target.vocabulary import write_vocabulary
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.generation.engines.request import Privacy, request_body
from pipeline.records import JsonObject, Prompt, RefusedError, Route, Sampling, ToolMode

ROUTE = Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow", stream=True)
CITY: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: JsonObject = {"type": "function", "function": {"name": "weather", "parameters": dict(CITY)}}
PROMPT = Prompt("row-1", ({"role": "user", "content": "Hi"},))
TOOLED = Prompt("row-1", PROMPT.messages, (TOOL,))


@pytest.fixture
def fmt(tmp_path: Path) -> Format:
    write_vocabulary({bytes([value]): value for value in range(256)}, tmp_path)
    return load_format("kimi-k2.5", load_tokenizer(tmp_path))


def test_what_must_not_be_decided_elsewhere_is_always_said(fmt: Format) -> None:
    body = request_body(PROMPT, ROUTE, Sampling(), ToolMode.NONE, fmt, "sample-9")

    expected = {
        "model": "moonshotai/kimi-k2.5",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "temperature": 1.0,
        "max_tokens": 256,
        "reasoning": {"enabled": True},
        "usage": {"include": True},
        "provider": {
            "only": ["siliconflow"],
            "allow_fallbacks": False,
            "require_parameters": True,
            "data_collection": "deny",
            "enforce_distillable_text": True,
        },
        "plugins": [{"id": "context-compression", "enabled": False}],
        "user": "sample-9",
    }
    assert expected == body
    assert list(expected) == list(body)


def test_seed_logprobs_and_ids_are_said_where_asked(fmt: Format) -> None:
    sampling = Sampling(temperature=0.5, max_tokens=7, seed=3, logprobs=True, return_token_ids=True)
    body = request_body(PROMPT, ROUTE, sampling, ToolMode.NONE, fmt, "s")

    asked = ("temperature", "max_tokens", "seed", "logprobs", "return_token_ids")
    assert [0.5, 7, 3, True, True] == [body[key] for key in asked]


def test_what_the_endpoint_does_not_take_is_left_out(fmt: Format) -> None:
    """`require_parameters` would leave no endpoint otherwise."""
    sampling = Sampling(seed=0, logprobs=True, return_token_ids=True)
    body = request_body(PROMPT, ROUTE, sampling, ToolMode.NONE, fmt, "s", supported=frozenset({"seed"}))

    assert [True, False, False] == [name in body for name in ("seed", "logprobs", "return_token_ids")]


def test_thinking_is_switched_off_where_the_prompt_says_so(fmt: Format) -> None:
    prompt = Prompt("row-1", PROMPT.messages, thinking=False)

    assert request_body(prompt, ROUTE, Sampling(), ToolMode.NONE, fmt, "s")["reasoning"] == {"enabled": False}


def test_privacy_is_as_configured(fmt: Format) -> None:
    privacy = Privacy(data_collection="allow", enforce_distillable_text=False, zdr=True)
    provider = request_body(PROMPT, ROUTE, Sampling(), ToolMode.NONE, fmt, "s", privacy=privacy)["provider"]

    expected = {"only": ["siliconflow"], "allow_fallbacks": False, "require_parameters": True}
    assert {**expected, "data_collection": "allow", "zdr": True} == provider


def test_structured_tools_travel_as_tools(fmt: Format) -> None:
    body = request_body(TOOLED, ROUTE, Sampling(), ToolMode.STRUCTURED, fmt, "s")

    assert ([TOOL], list(PROMPT.messages)) == (body["tools"], body["messages"])


def test_raw_tools_travel_in_the_prompt(fmt: Format) -> None:
    body = request_body(TOOLED, ROUTE, Sampling(), ToolMode.RAW, fmt, "s")
    declaration = (
        "# Tools\n\n## functions\nnamespace functions {\ntype weather = (_: {\n  city: string\n}) => any;\n}\n"
    )

    assert "tools" not in body
    assert [{"role": "tool_declare", "content": declaration}, *PROMPT.messages] == body["messages"]


def test_tools_that_would_not_be_seen_are_refused(fmt: Format) -> None:
    with pytest.raises(RefusedError, match="tool mode is none"):
        request_body(TOOLED, ROUTE, Sampling(), ToolMode.NONE, fmt, "s")


def test_a_route_that_pins_no_provider_is_refused(fmt: Format) -> None:
    with pytest.raises(ValueError, match="pins no provider"):
        request_body(PROMPT, Route("openrouter", "m"), Sampling(), ToolMode.NONE, fmt, "s")


@pytest.mark.parametrize("key", ["provider", "plugins", "reasoning", "stream", "user", "messages"])
def test_extra_settings_cannot_undo_what_is_said(key: str, fmt: Format) -> None:
    with pytest.raises(ValueError, match=key):
        request_body(PROMPT, ROUTE, Sampling(extra={key: None}), ToolMode.NONE, fmt, "s")


@pytest.mark.parametrize("key", ["thinking_budget", "tool_choice", "response_format", "stop", "chat_template_kwargs"])
def test_settings_that_force_tokens_are_refused(key: str, fmt: Format) -> None:
    """What is forced, forbidden or cut off shows in no text and in no count."""
    with pytest.raises(ValueError, match=key):
        request_body(PROMPT, ROUTE, Sampling(extra={key: 1}), ToolMode.NONE, fmt, "s")


def test_extra_settings_are_added(fmt: Format) -> None:
    body = request_body(PROMPT, ROUTE, Sampling(extra={"top_p": 0.95}), ToolMode.NONE, fmt, "s")

    assert body["top_p"] == 0.95
    assert json.dumps(body)
