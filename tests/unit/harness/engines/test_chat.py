"""How the engines are asked, and that their text view holds no ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from harness.emulator.survey import SurveyQuestion
from harness.engines.chat import ENGINES, Answered, EngineError, body_of, exchange_of, true_ids
from harness.fixtures.answers import FORMAT, PROMPT_IDS, WHOLE
from harness.tiny_target.tools import CLOCK
from harness.views.roundtrip import RoundTrip
from pipeline.records import Completion, Prompt

TOOLS = Prompt("t", ({"role": "user", "content": "hi"},), (CLOCK,))


def question(engine: str, prompt: Prompt, *, stream: bool = False, tools_sent: bool = False) -> SurveyQuestion:
    return SurveyQuestion(RoundTrip(ENGINES[engine], stream, tools_sent), prompt, seed=1)


def answered(engine: str, body: Mapping[str, Any]) -> Answered:
    asked = question(engine, Prompt("r", ({"role": "user", "content": "hi"},)))
    return Answered(asked, b"{}", json.dumps(body).encode())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stream", [False, True])
def test_every_request_asks_for_the_ids(engine: str, stream: bool) -> None:
    body = body_of(engine, question(engine, TOOLS, stream=stream, tools_sent=True), FORMAT)

    by_extension = engine == "sglang" and stream
    assert by_extension == body.get("return_output_ids_in_sglext", False)
    assert (not by_extension) == body.get("return_token_ids", False)
    assert [CLOCK] == body["tools"]
    assert FORMAT.declare_tools((CLOCK,)) == body["chat_template_kwargs"]["tools_ts_str"]


def test_tools_in_the_prompt_alone_go_as_ids_or_as_a_message() -> None:
    sglang = body_of("sglang", question("sglang", TOOLS), FORMAT)
    vllm = body_of("vllm", question("vllm", TOOLS), FORMAT)

    assert list(FORMAT.render(TOOLS)) == sglang["input_ids"]
    assert {"role": "tool_declare", "content": FORMAT.declare_tools((CLOCK,))} == vllm["messages"][0]
    assert "tools" not in sglang
    assert "tools" not in vllm


def test_the_view_has_a_name_and_no_ids() -> None:
    exchange = exchange_of(answered("vllm", vllm_body()), FORMAT)
    seen = exchange.completion

    assert isinstance(seen, Completion)
    assert ("vLLM", "So it is.", None, None) == (seen.provider, seen.reasoning, seen.token_ids, seen.prompt_ids)
    assert (PROMPT_IDS, WHOLE) == (exchange.truth.prompt_ids, exchange.truth.output_ids)
    assert not exchange.truth.cut


def test_an_answer_without_ids_is_an_error() -> None:
    """Its text is not read instead."""
    body = vllm_body()
    del body["choices"][0]["token_ids"]

    with pytest.raises(EngineError, match="was asked for ids and returned none"):
        true_ids(answered("vllm", body))


def vllm_body() -> dict[str, Any]:
    message = {"role": "assistant", "content": " Yes.", "reasoning": "So it is.", "function_call": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None, "token_ids": list(WHOLE)}
    usage = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": len(WHOLE)}
    return {"model": "m", "choices": [choice], "usage": usage, "prompt_token_ids": list(PROMPT_IDS)}
