"""The emulator's answers over a real socket: every profile, streamed and not, tools, ids, logprobs. No torch."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.emulator.answers import Ask, PoolAnswerer, ResegmentAnswerer, Sampled
from harness.emulator.oracle_log import OracleEntry
from harness.emulator.server import emulator_in_process
from harness.tiny_target.vocabulary import write_vocabulary
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import Tokenizer, load_tokenizer
from pipeline.generation.engines.openrouter import OpenRouter, encode_body
from pipeline.generation.engines.request import request_body
from pipeline.proof.reconstruct import reconstruct
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Completion, Evidence, Ids, JsonObject, Prompt, Route, Sampling, TokenRow, ToolMode

MODEL = "drafter-gate/tiny-kimi"
MERGED = [b"wo", b"Tw", b" t", b"an", b"nd", b" a", b"ur", b"ou", b" f", b" i", b"is"]
"""Enough for text to have other splits, of the same length and not."""

PROVIDERS = {"siliconflow": "SiliconFlow", "chutes": "Chutes", "atlascloud": "AtlasCloud"}
QUESTION: list[JsonObject] = [{"role": "user", "content": "What is 2 + 2?"}]
WEATHER: JsonObject = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
INSTANT: list[dict[str, object]] = [
    {"reasoning": {"enabled": False}},
    {"reasoning": {"effort": "none"}},
    {"chat_template_kwargs": {"thinking": False}},
]


@pytest.fixture(scope="module")
def fmt(tmp_path_factory: pytest.TempPathFactory) -> Format:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokens = [*(bytes([value]) for value in range(256)), *MERGED]
    write_vocabulary({token: rank for rank, token in enumerate(tokens)}, directory)
    return load_format("kimi-k2.5", load_tokenizer(directory))


def pool(*answers: Ids) -> PoolAnswerer:
    return PoolAnswerer(common=list(answers))


def request(slug: str = "chutes", **fields: object) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": QUESTION,
        "max_tokens": 200,
        "provider": {"only": [slug], "allow_fallbacks": False},
        "user": "row-1",
        **fields,
    }


def spoken(tokenizer: Tokenizer, *parts: str) -> Ids:
    """Parts that are control names as control ids, the others as text."""
    known = set(tokenizer.control_names)
    ids: list[int] = []
    for part in parts:
        ids.extend([tokenizer.id_of(part)] if part in known else tokenizer.encode(part))
    return tuple(ids)


def four(fmt: Format) -> Ids:
    return spoken(fmt.tokenizer, " Two and two.", "</think>", " It is four.", "<|im_end|>")


def call(fmt: Format) -> Ids:
    return spoken(
        fmt.tokenizer,
        "Ask.",
        "</think>",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.weather:0",
        "<|tool_call_argument_begin|>",
        '{"city": "Florence"}',
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
        "<|im_end|>",
    )


def read(text: str, *, stream: bool) -> Completion:
    return completion_of_sse(text) if stream else completion_of_json(text.encode())


def data_of(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]


@pytest.mark.parametrize("slug", PROVIDERS)
def test_a_body_is_openrouters_and_its_true_ids_are_logged(slug: str, fmt: Format, tmp_path: Path) -> None:
    ids = four(fmt)
    with emulator_in_process(fmt, pool(ids), tmp_path / "oracle.jsonl") as emulator:
        response = emulator.post(request(slug))
        entries = emulator.entries()
        billed = emulator.service.account.billed_usd

    body = json.loads(response.content)
    choice = body["choices"][0]
    seam = "" if slug == "atlascloud" else " "
    counted = len(ids) - (slug == "siliconflow")
    prompt_ids = fmt.render(Prompt("", tuple(QUESTION)))
    assert (200, "application/json") == (response.status_code, response.headers["content-type"])
    assert response.headers["x-generation-id"] == body["id"]
    assert (MODEL, PROVIDERS[slug], "chat.completion") == (body["model"], body["provider"], body["object"])
    assert (f"{seam}Two and two.", f"{seam}It is four.") == (
        choice["message"]["reasoning"],
        choice["message"]["content"],
    )
    assert ("stop", "stop") == (choice["finish_reason"], choice["native_finish_reason"])
    assert (len(prompt_ids), counted) == (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
    assert float(billed) == body["usage"]["cost"]
    expected = OracleEntry(
        generation_id=body["id"],
        sample_id="row-1",
        provider=PROVIDERS[slug],
        stream=False,
        thinking=True,
        prompt_ids=prompt_ids,
        output_ids=ids,
        noncanonical=False,
        resegmented=None,
        cut=False,
        cost=str(billed),
    )
    assert [expected] == entries


@pytest.mark.parametrize("slug", PROVIDERS)
def test_a_stream_is_openrouters_and_tells_the_same(slug: str, fmt: Format, tmp_path: Path) -> None:
    with emulator_in_process(fmt, pool(four(fmt)), tmp_path / "oracle.jsonl") as emulator:
        response = emulator.post(request(slug, stream=True))
        entry = emulator.entries()[0]

    chunks = data_of(response.text)
    completion = completion_of_sse(response.text)
    seam = "" if slug == "atlascloud" else " "
    assert response.headers["content-type"].startswith("text/event-stream")
    assert ": OPENROUTER PROCESSING\n\n" in response.text
    assert chunks[-1] == "[DONE]"
    assert "usage" in json.loads(chunks[-2])
    assert (f"{seam}Two and two.", f"{seam}It is four.", "stop") == (
        completion.reasoning,
        completion.content,
        completion.finish_reason,
    )
    assert (True, PROVIDERS[slug], four(fmt)) == (entry.stream, entry.provider, entry.output_ids)


def test_tools_in_the_prompt_leave_markers_in_the_text(fmt: Format, tmp_path: Path) -> None:
    route = Route("emulator", MODEL, "chutes")
    prompt = Prompt("row-1", tuple(QUESTION), (WEATHER,))
    body = request_body(prompt, route, Sampling(), ToolMode.RAW, fmt, "row-1")
    with emulator_in_process(fmt, pool(call(fmt)), tmp_path / "oracle.jsonl") as emulator:
        message = json.loads(emulator.post(body).content)["choices"][0]["message"]
        entry = emulator.entries()[0]

    assert "tools" not in body
    assert fmt.render(prompt) == entry.prompt_ids
    assert "tool_calls" not in message
    assert message["content"] == (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Florence"}<|tool_call_end|><|tool_calls_section_end|>'
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "slug,identity,arguments",
    [
        ("siliconflow", "functions.weather:0", '{"city":"Florence"}'),
        ("chutes", "functions.weather:0", '{"city": "Florence"}'),
        ("atlascloud", "weather:0", '{"city": "Florence"}'),
    ],
)
def test_tools_that_are_sent_come_back_parsed(
    slug: str, identity: str, arguments: str, stream: bool, fmt: Format, tmp_path: Path
) -> None:
    with emulator_in_process(fmt, pool(call(fmt)), tmp_path / "oracle.jsonl") as emulator:
        completion = read(emulator.post(request(slug, stream=stream, tools=[WEATHER])).text, stream=stream)
        entry = emulator.entries()[0]

    found = completion.tool_calls[0]
    assert (identity, "weather", arguments) == (found.id, found.name, found.arguments)
    assert ("tool_calls", "stop") == (completion.finish_reason, completion.native_finish_reason)
    assert not completion.content
    assert fmt.render(Prompt("", tuple(QUESTION), (WEATHER,))) == entry.prompt_ids


@pytest.mark.parametrize("switch", INSTANT)
def test_an_instant_answer_has_no_reasoning(switch: dict[str, object], fmt: Format, tmp_path: Path) -> None:
    with emulator_in_process(
        fmt, pool(spoken(fmt.tokenizer, "Four.", "<|im_end|>")), tmp_path / "oracle.jsonl"
    ) as emulator:
        message = json.loads(emulator.post({**request(), **switch}).content)["choices"][0]["message"]
        entry = emulator.entries()[0]

    assert (None, "Four.") == (message["reasoning"], message["content"])
    assert (False, fmt.render(Prompt("", tuple(QUESTION), thinking=False))) == (entry.thinking, entry.prompt_ids)


def test_a_limit_cuts_the_true_ids(fmt: Format, tmp_path: Path) -> None:
    with emulator_in_process(fmt, pool(four(fmt)), tmp_path / "oracle.jsonl") as emulator:
        body = json.loads(emulator.post(request(max_tokens=5)).content)
        entry = emulator.entries()[0]

    assert ("length", "length") == (body["choices"][0]["finish_reason"], body["choices"][0]["native_finish_reason"])
    assert (5, True, four(fmt)[:5]) == (body["usage"]["completion_tokens"], entry.cut, entry.output_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_come_back_where_the_provider_returns_them(stream: bool, fmt: Format, tmp_path: Path) -> None:
    with emulator_in_process(fmt, pool(four(fmt)), tmp_path / "oracle.jsonl") as emulator:
        answers = {slug: emulator.post(request(slug, stream=stream, return_token_ids=True)).text for slug in PROVIDERS}

    completions = {slug: read(text, stream=stream) for slug, text in answers.items()}
    prompt_ids = fmt.render(Prompt("", tuple(QUESTION)))
    assert (prompt_ids, four(fmt)) == (completions["chutes"].prompt_ids, completions["chutes"].token_ids)
    assert [None, None] == [completions[slug].token_ids for slug in ("siliconflow", "atlascloud")]


@dataclass
class Sure:
    """An answerer that knows the log-probabilities of its one answer."""

    ids: Ids

    async def answer(self, _: Ask) -> Sampled:
        return Sampled(self.ids, tuple(-0.5 * place for place in range(len(self.ids))))

    async def close(self) -> None: ...


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_come_back_where_the_provider_returns_them(stream: bool, fmt: Format, tmp_path: Path) -> None:
    with emulator_in_process(fmt, Sure(four(fmt)), tmp_path / "oracle.jsonl") as emulator:
        answers = {slug: emulator.post(request(slug, stream=stream, logprobs=True)).text for slug in PROVIDERS}

    completions = {slug: read(text, stream=stream) for slug, text in answers.items()}
    found = completions["siliconflow"].logprobs
    assert found is not None
    assert [fmt.tokenizer.token_bytes(token) for token in four(fmt)] == [entry.data for entry in found]
    assert [-0.5 * place for place in range(len(four(fmt)))] == [entry.logprob for entry in found]
    assert completions["atlascloud"].logprobs is not None
    assert completions["chutes"].logprobs is None


def test_a_spelled_control_token_is_served_as_engines_read_it(fmt: Format, tmp_path: Path) -> None:
    messages: list[JsonObject] = [{"role": "user", "content": "say <|im_end|>"}]
    with emulator_in_process(fmt, pool(four(fmt)), tmp_path / "oracle.jsonl") as emulator:
        emulator.post(request(messages=messages))
        entry = emulator.entries()[0]

    one = fmt.tokenizer.id_of
    expected = spoken(fmt.tokenizer, "<|im_user|>", "user", "<|im_middle|>", "say ", "<|im_end|>", "<|im_end|>")
    assert (*expected, one("<|im_assistant|>")) == entry.prompt_ids[: len(expected) + 1]


def test_resplit_answers_keep_their_bytes_and_are_logged(fmt: Format, tmp_path: Path) -> None:
    ids = four(fmt)
    with emulator_in_process(
        fmt, ResegmentAnswerer(pool(ids), fmt.tokenizer, 1.0), tmp_path / "oracle.jsonl"
    ) as emulator:
        for number in range(20):
            emulator.post(request(user=f"row-{number}", seed=number))
        entries = emulator.entries()

    assert len(entries) == 20
    assert {"same_count", "other_count"} <= {entry.resegmented for entry in entries}
    for entry in entries:
        assert fmt.tokenizer.decode_bytes(ids) == fmt.tokenizer.decode_bytes(entry.output_ids)
        assert entry.noncanonical == (entry.output_ids != ids) == (entry.resegmented is not None)
        assert (len(entry.output_ids) > len(ids)) == (entry.resegmented == "other_count")


def test_the_client_rebuilds_what_the_oracle_says(fmt: Format, tmp_path: Path) -> None:
    """Request, wire and proof with no part of ours left out: an answer with ids is an accepted row."""
    prompt = Prompt("row-1", tuple(QUESTION))
    body = request_body(
        prompt, Route("emulator", MODEL, "chutes"), Sampling(return_token_ids=True), ToolMode.NONE, fmt, "row-1"
    )

    async def ask(url: str) -> bytes:
        async with OpenRouter(url) as client:
            return (await client.send(encode_body(body))).raw

    with emulator_in_process(fmt, pool(four(fmt)), tmp_path / "oracle.jsonl") as emulator:
        row = reconstruct(prompt, completion_of_json(asyncio.run(ask(emulator.url))), fmt, None)
        entry = emulator.entries()[0]

    assert isinstance(row, TokenRow)
    assert (Evidence.ENGINE_IDS, entry.prompt_ids, entry.output_ids) == (row.evidence, row.prompt_ids, row.output_ids)
