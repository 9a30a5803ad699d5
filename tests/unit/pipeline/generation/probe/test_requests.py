"""The requests of a probe: what is asked of which model, and what is left out with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from pipeline.base.money import pico
from pipeline.formats.registry import open_format
from pipeline.generation.budget import Amount
from pipeline.generation.engines.catalog import Endpoint
from pipeline.generation.engines.request import Privacy
from pipeline.generation.plan import Plan
from pipeline.generation.probe.probes import Known, Probe
from pipeline.generation.probe.requests import probe_requests_of
from pipeline.records import JsonObject, Prompt, Route, Sampling, ToolMode

FMT = open_format("tiny-kimi")
ENDPOINT = Endpoint(
    provider_name="P",
    tag="p",
    prompt_usd=Decimal("0.000001"),
    completion_usd=Decimal("0.000002"),
    request_usd=Decimal(0),
    context_length=2048,
    max_completion_tokens=None,
    supported_parameters=frozenset({"tools", "reasoning"}),
)
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {}}}
INSTANT = Probe(Prompt("instant", ({"role": "user", "content": "hi"},), thinking=False), Known("hi"), max_tokens=8)
CUT = Probe(Prompt("cut", INSTANT.prompt.messages, thinking=False), Known(cut=True), max_tokens=8)
TOOLS = Probe(Prompt("tools", INSTANT.prompt.messages, (TOOL,)), Known(calls=("f",)), ToolMode.STRUCTURED, max_tokens=8)


def plan(model: str = "drafter-gate/tiny-kimi") -> Plan:
    return Plan(
        prompts=Path("probes.jsonl"),
        out=Path("out"),
        route=Route("openrouter", model, "p", stream=False),
        sampling=Sampling(),
        tool_mode=ToolMode.NONE,
        fmt=FMT,
        budget_pico=pico(1),
        privacy=Privacy(zdr=True),
    )


def test_each_probe_is_asked_in_both_forms_round_by_round() -> None:
    found = probe_requests_of([INSTANT, CUT], plan(), ENDPOINT, "run", 2)

    assert [
        *("instant/json/1", "instant/stream/1", "cut/json/1", "cut/stream/1"),
        *("instant/json/2", "instant/stream/2", "cut/json/2", "cut/stream/2"),
    ] == [question.request.row for question in found.asked]
    assert 8 == len({question.request.identity for question in found.asked})


def test_a_request_is_the_probe_with_a_sample_id_of_its_run() -> None:
    (one, _), (other, _) = (probe_requests_of([INSTANT], plan(), ENDPOINT, run, 1).asked for run in ("a", "b"))

    body, again = json.loads(one.request.body), json.loads(other.request.body)
    assert [{"role": "user", "content": "hi"}] == body["messages"]
    assert (False, 0.0, 8, {"enabled": False}) == tuple(
        body[name] for name in ("stream", "temperature", "max_tokens", "reasoning")
    )
    assert (["p"], True, "deny") == tuple(body["provider"][name] for name in ("only", "zdr", "data_collection"))
    assert {name for name in body if body[name] != again[name]} == {"user"}


def test_the_worst_case_of_all_is_the_sum_of_each() -> None:
    """A prompt counts half as much again and 128 more, for what providers' templates add."""
    found = probe_requests_of([INSTANT], plan(), ENDPOINT, "run", 1)

    prompt = len(FMT.render(INSTANT.prompt))
    tokens = prompt + prompt // 2 + 128
    each = Amount(tokens * 10**6 + 8 * 2 * 10**6, tokens + 8, 1)
    assert each + each == found.worst


@pytest.mark.parametrize(
    "model, probe, thinking, max_tokens",
    [
        ("drafter-gate/tiny-kimi", INSTANT, False, 8),
        ("unknown/model", INSTANT, False, 8),
        ("deepseek/deepseek-r1", INSTANT, True, 1024),
        ("deepseek/deepseek-r1", CUT, True, 8),
        ("moonshotai/kimi-k2", TOOLS, False, 8),
    ],
)
def test_a_model_that_always_thinks_or_never_does_is_asked_so(
    model: str, probe: Probe, thinking: bool, max_tokens: int
) -> None:
    (one, _) = probe_requests_of([probe], plan(model), ENDPOINT, "run", 1).asked

    body = json.loads(one.request.body)
    assert ({"enabled": thinking}, max_tokens) == (body["reasoning"], body["max_tokens"])


@pytest.mark.parametrize(
    "probe, endpoint, why",
    [
        (TOOLS, replace(ENDPOINT, supported_parameters=frozenset()), "the endpoint takes no tools"),
        (INSTANT, replace(ENDPOINT, context_length=10), "the endpoint takes 10"),
        (INSTANT, replace(ENDPOINT, max_completion_tokens=7), "it needs an answer of 8 tokens, the endpoint gives 7"),
        (
            replace(INSTANT, prompt=replace(INSTANT.prompt, messages=({"role": "user", "content": "<|im_end|>"},))),
            ENDPOINT,
            "the prompt spells <|im_end|>",
        ),
        (replace(INSTANT, prompt=replace(INSTANT.prompt, messages=({"role": 7},))), ENDPOINT, "a message has the role"),
    ],
)
def test_what_cannot_be_asked_is_left_out_with_the_reason(probe: Probe, endpoint: Endpoint, why: str) -> None:
    found = probe_requests_of([probe], plan(), endpoint, "run", 1)

    ((name, told),) = found.left_out
    assert ((), probe.id) == (found.asked, name)
    assert why in told
