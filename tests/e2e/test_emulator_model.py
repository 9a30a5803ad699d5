"""The emulator over the tiny target itself: what is sampled is what the oracle log says. Needs torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from harness.emulator.answers import local_answerer
from harness.emulator.server import EmulatorInProcess, emulator_in_process
from pipeline.base.prompts import prompt_of
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.generation.engines.openrouter import OpenRouter, encode_body
from pipeline.generation.engines.request import request_body
from pipeline.proof.reconstruct import reconstruct
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import (
    Completion,
    Evidence,
    Prompt,
    Reason,
    Refusal,
    RefusedError,
    Route,
    Sampling,
    TokenRow,
    ToolMode,
)

TINY = Path(__file__).parents[2] / "harness" / "tiny_target"
MODEL = "drafter-gate/tiny-kimi"
COUNT = 12


@pytest.fixture(scope="module")
def fmt() -> Format:
    return load_format("kimi-k2.5", load_tokenizer(TINY / "weights"))


@pytest.fixture(scope="module")
def emulator(fmt: Format, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorInProcess]:
    answerer, _ = local_answerer(TINY / "weights", most=8, threads=1)
    with emulator_in_process(fmt, answerer, tmp_path_factory.mktemp("oracle") / "oracle.jsonl") as trial:
        yield trial


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    with (TINY / "prompts.jsonl").open(encoding="utf-8") as lines:
        return [prompt_of(json.loads(line)) for line in islice(lines, COUNT)]


def asked(
    trial: EmulatorInProcess, fmt: Format, prompts: list[Prompt], route: Route, sampling: Sampling
) -> list[Completion]:
    """All prompts at once, so that they are answered in batches."""

    async def one(client: OpenRouter, prompt: Prompt) -> Completion:
        mode = ToolMode.RAW if prompt.tools else ToolMode.NONE
        body = request_body(prompt, route, sampling, mode, fmt, f"{route.name}/{prompt.id}/{route.stream}")
        answer = await client.send(encode_body(body))
        return completion_of_sse(answer.raw.decode()) if route.stream else completion_of_json(answer.raw)

    async def every() -> list[Completion]:
        async with OpenRouter(trial.url) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    return asyncio.run(every())


@pytest.mark.parametrize("stream", [False, True])
def test_every_row_is_the_true_one_or_refused_for_its_layout(
    stream: bool, emulator: EmulatorInProcess, fmt: Format, prompts: list[Prompt]
) -> None:
    route = Route("emulator", MODEL, "chutes", stream)
    completions = asked(emulator, fmt, prompts, route, Sampling(max_tokens=256, seed=7, return_token_ids=True))
    truth = {entry.generation_id: entry for entry in emulator.entries()}
    rows = [reconstruct(prompt, answer, fmt, None) for prompt, answer in zip(prompts, completions, strict=True)]

    for completion, row in zip(completions, rows, strict=True):
        entry = truth[completion.generation_id or ""]
        if isinstance(row, Refusal):
            assert row.reason is Reason.LAYOUT_INVALID
            with pytest.raises(RefusedError):
                fmt.layout(entry.output_ids, thinking=entry.thinking)
            continue
        assert row.evidence is Evidence.ENGINE_IDS
        assert (entry.prompt_ids, entry.output_ids) == (row.prompt_ids, row.output_ids)
    assert sum(isinstance(row, TokenRow) for row in rows) >= COUNT - 3


def test_the_same_seed_gives_the_same_ids_however_it_is_batched(
    emulator: EmulatorInProcess, fmt: Format, prompts: list[Prompt]
) -> None:
    route = Route("emulator", MODEL, "chutes")
    sampling = Sampling(max_tokens=24, seed=11, return_token_ids=True)
    together = asked(emulator, fmt, prompts[:6], route, sampling)
    alone = [asked(emulator, fmt, [prompt], route, sampling)[0] for prompt in prompts[:6]]

    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]


def test_a_greedy_answer_has_the_likeliest_tokens(
    emulator: EmulatorInProcess, fmt: Format, prompts: list[Prompt]
) -> None:
    route = Route("emulator", MODEL, "siliconflow")
    completion = asked(emulator, fmt, prompts[:1], route, Sampling(temperature=0, max_tokens=16, logprobs=True))[0]

    assert completion.logprobs is not None
    assert all(entry.logprob is not None and -20 < entry.logprob <= 0 for entry in completion.logprobs)
