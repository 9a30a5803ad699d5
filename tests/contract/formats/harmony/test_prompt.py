"""Prompts in harmony: what is printed, what engines print in many ways, and what only prompt ids tell."""

from __future__ import annotations

import pytest

from harness.fixtures.answers import answer, route
from harness.fixtures.harmony_bytes import ANALYSIS, BYTES, FINAL, FORMAT, HARMONY, PROMPT, TURN, USER, ids_of, text_of
from pipeline.formats.harmony.format import load_high
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Json, JsonObject, Prompt, Reason, Refusal, RefusedError, TokenRow, Usage

pytestmark = pytest.mark.contract


def rendered(*messages: JsonObject, tools: tuple[JsonObject, ...] = ()) -> str:
    text = text_of(FORMAT.render(Prompt("r", messages, tools)))
    return text.partition("every message.")[2]


def called(arguments: str = '{"a": 1}', **changes: Json) -> JsonObject:
    call: Json = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **changes}


RESULT: JsonObject = {"role": "tool", "tool_call_id": "c", "content": "sun"}
FINAL_ANSWER: JsonObject = {"role": "assistant", "content": "Sun.", "reasoning_content": "It shines."}


def test_analysis_is_kept_only_after_the_last_final_message() -> None:
    """Analysis is kept where calls follow the last final message and dropped before."""
    thought = called(reasoning_content="Look.")
    call = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    result = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>sun<|end|>"
    analysis = "<|start|>assistant<|channel|>analysis<|message|>Look.<|end|>"
    user = "<|start|>user<|message|>hi<|end|>"
    final = "<|start|>assistant<|channel|>final<|message|>Sun.<|end|>"

    expected = f"<|end|>{user}{call}{result}{final}{user}{analysis}{call}{result}<|start|>assistant"
    assert expected == rendered(USER, thought, RESULT, FINAL_ANSWER, USER, thought, RESULT)


def test_tools_are_declared_in_two_messages() -> None:
    """Tools are declared to the developer and named by the system message."""
    schema: Json = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 3},
            "unit": {"type": "string", "enum": ["c", "f"]},
        },
        "required": ["city"],
    }
    tool: JsonObject = {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather.\nNow.", "parameters": schema},
    }
    expected = (
        "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|><|start|>developer<|message|>"
        "# Tools\n\n## functions\n\nnamespace functions {\n\n// The weather.\n// Now.\ntype get_weather = (_: {\n"
        "// Where.\ncity: string,\ndays?: number, // default: 3\n"
        'unit?: "c" | "f",\n}) => any;\n\n} // namespace functions<|end|>'
        "<|start|>user<|message|>hi<|end|><|start|>assistant"
    )
    assert expected == rendered(USER, tools=(tool,))


def test_how_hard_to_think_is_said_and_asked_for() -> None:
    high = load_high("toy-high", BYTES)

    assert "Reasoning: high" in text_of(high.render(PROMPT))
    assert ({}, {"reasoning_effort": "high"}) == (FORMAT.template_switches, high.template_switches)


ASSISTANT: JsonObject = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    "prompt, said",
    [
        (Prompt("r", (USER,), thinking=False), "always thinks"),
        (Prompt("r", ()), "no messages"),
        (Prompt("r", (USER, {"role": "system", "content": "S"})), "has the role 'system'"),
        (Prompt("r", ({"role": "system", "content": "S"}, {"role": "system", "content": "T"})), "the role 'system'"),
        (Prompt("r", ({"role": "system", "content": ""}, USER)), "empty system message"),
        (Prompt("r", (USER, {"role": "assistant", "content": ""}, USER)), "empty answer"),
        (Prompt("r", (USER, {**ASSISTANT, "tool_calls": []}, USER)), "there and empty"),
        (Prompt("r", (USER, called(content="Wait."), RESULT)), "content beside a call"),
        (Prompt("r", (USER, called("{"), RESULT)), "no JSON"),
        (Prompt("r", (USER, RESULT)), "does not answer the call"),
        (Prompt("r", (USER, called(), {**RESULT, "tool_call_id": "d"})), "does not answer the call"),
        (Prompt("r", (USER, called(), FINAL_ANSWER, RESULT)), "does not answer the call"),
        (Prompt("r", (USER, called(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}] * 2))), "2 calls"),
        (Prompt("r", (USER,), ({"type": "function", "function": {"name": "f"}},)), "without a description"),
        (Prompt("r", (USER,), ({"type": "web_search"},)), "a tool that is not"),
    ],
)  # fmt: skip
def test_what_engines_render_in_many_ways_is_refused(prompt: Prompt, said: str) -> None:
    with pytest.raises(RefusedError, match=said) as error:
        FORMAT.render(prompt)

    assert Reason.PROMPT_UNSUPPORTED is error.value.refusal.reason


def declared(schema: Json) -> JsonObject:
    parameters: Json = {"type": "object", "properties": {"x": schema}}
    return {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}


SYSTEM: JsonObject = {"role": "system", "content": "S"}
STRING: Json = {"type": "string"}
FULL = ids_of(f"{ANALYSIS}r{TURN}{FINAL}c<|return|>")


@pytest.mark.parametrize(
    "prompt, said",
    [
        (Prompt("r", (SYSTEM, USER), (declared(STRING),)), "put either first"),
        (Prompt("r", (USER, called('{"a":1}'), RESULT)), "in another way"),
        (Prompt("r", (USER,), (declared({"type": "integer", "default": 1}),)), "declare in different ways"),
        (Prompt("r", (USER,), (declared({"type": "object", "properties": {}}),)), "declare in different ways"),
        (Prompt("r", (USER,), (declared({"type": ["integer", "null"]}),)), "declare in different ways"),
        (Prompt("r", (USER,), (declared({"anyOf": [STRING]}),)), "declare in different ways"),
    ],
)
def test_ambiguous_prompts_need_prompt_ids(prompt: Prompt, said: str) -> None:
    """Prompts that engines print apart with as many tokens need prompt ids."""
    rendered_ids = FORMAT.render(prompt)
    usage = Usage(len(rendered_ids), len(FULL))
    untold, told = (
        reconstruct(prompt, answer(reasoning="r", content="c", usage=usage, **served), FORMAT, route(HARMONY))
        for served in ({}, {"token_ids": FULL, "prompt_ids": rendered_ids})
    )

    assert isinstance(untold, Refusal)
    assert Reason.PROMPT_UNSUPPORTED is untold.reason
    assert said in untold.detail
    assert isinstance(told, TokenRow)
    assert rendered_ids == told.prompt_ids


def test_a_tool_that_engines_declare_alike_is_unambiguous() -> None:
    """A tool that all engines declare alike needs no prompt ids."""
    assert FORMAT.ambiguity(Prompt("r", (USER,), (declared(STRING),))) is None


def test_tools_do_not_travel_in_a_message() -> None:
    with pytest.raises(RefusedError, match="cannot travel"):
        FORMAT.declare_tools((declared(STRING),))


def test_a_prompt_that_spells_a_control_token_is_named() -> None:
    assert "<|end|>" == FORMAT.special_text(Prompt("r", ({"role": "user", "content": "a<|end|>"},)))
    assert FORMAT.special_text(PROMPT) is None
