"""SGLang and vLLM by ids over a loopback server, and engine seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from harness.engines.stand_in import Name, StandIn, standing_in
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.output import EngineError, EngineOutput
from pipeline.generation.engines.server import (
    BusyClock,
    EngineFacts,
    EngineGoneError,
    EngineServer,
    RequestSeconds,
    ServerRequest,
)
from pipeline.records import Sampling

PROMPT, ANSWER, END = (5, 6, 7), [11, 12, 13, 99], 99
ENGINES: tuple[Name, ...] = ("sglang", "vllm")
GREEDY = Sampling(temperature=0.0, max_tokens=8)


def stand_in(name: Name, **settings: Any) -> StandIn:  # noqa: ANN401 - StandIn's own fields
    return StandIn(name, lambda _: list(ANSWER), END, **settings)


async def asked(server: StandIn, sampling: Sampling = GREEDY, prompt: tuple[int, ...] = PROMPT) -> EngineOutput:
    async with EngineServer(DIALECTS[server.name](), server.url) as client:
        return await client.generate(ServerRequest(prompt, sampling))


def generation(server: StandIn, sampling: Sampling = GREEDY, prompt: tuple[int, ...] = PROMPT) -> EngineOutput:
    with standing_in(server):
        return asyncio.run(asked(server, sampling, prompt))


@pytest.mark.parametrize("name", ENGINES)
def test_exact_ids_come_out_with_logprobs_and_end_token(name: Name) -> None:
    runner_up = tuple((token + 1, -1.5) for token in ANSWER)

    assert EngineOutput((11, 12, 13, 99), (-0.25,) * 4, runner_up, finished=True) == generation(stand_in(name))


@pytest.mark.parametrize("name", ENGINES)
def test_an_answer_cut_by_length_did_not_finish(name: Name) -> None:
    found = generation(stand_in(name), Sampling(temperature=0.0, max_tokens=3))

    assert ((11, 12, 13), False) == (found.ids, found.finished)


def test_sglang_is_asked_by_ids_and_for_every_token() -> None:
    server = stand_in("sglang")
    generation(server, Sampling(temperature=0.5, max_tokens=8, seed=3))

    sampling = {
        "max_new_tokens": 8,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "sampling_seed": 3,
    }
    logprobs = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2}
    assert [{"input_ids": [5, 6, 7], "sampling_params": sampling, **logprobs, "stream": False}] == server.asked


def test_vllm_is_asked_by_ids_and_for_ids() -> None:
    server = stand_in("vllm")
    generation(server)

    body = server.asked[0]
    assert ("/models/tiny", [5, 6, 7], 8) == (body["model"], body["prompt"], body["max_tokens"])
    assert (True, True, 2) == (body["return_token_ids"], body["return_tokens_as_token_ids"], body["logprobs"])


@pytest.mark.parametrize("name", ENGINES)
def test_of_the_server_only_what_decides_numbers_is_kept(name: Name) -> None:
    async def facts(server: StandIn) -> EngineFacts:
        async with EngineServer(DIALECTS[name](), server.url) as client:
            return client.facts

    with standing_in(stand_in(name)) as server:
        found = asyncio.run(facts(server))

    version, backend = {"sglang": ("0.5.23", "torch_native"), "vllm": ("0.32.0", "CPU_ATTN")}[name]
    kept = {"engine": name, "version": version, "device": "cpu", "dtype": "float32", "attention_backend": backend}
    assert kept == found.document()
    assert ("/models/tiny", {"sglang": 2046, "vllm": 2048}[name]) == (found.weights, found.context)
    assert "sk-not-to-be-kept" not in repr(found)


Spoil: TypeAlias = Callable[[Any], None]


def without(*path: str | int) -> Spoil:
    """A spoiler that takes a member away."""

    def spoil(body: Any) -> None:  # noqa: ANN401 - any JSON
        for step in path[:-1]:
            body = body[step]
        del body[path[-1]]

    return spoil


def put(value: object, *path: str | int) -> Spoil:
    """A spoiler that says something else."""

    def spoil(body: Any) -> None:  # noqa: ANN401 - any JSON
        for step in path[:-1]:
            body = body[step]
        body[path[-1]] = value

    return spoil


@pytest.mark.parametrize(
    "name, spoil, message",
    [
        ("sglang", without("output_ids"), "asked for token ids and returned none"),
        ("sglang", put([11, 12, 13], "output_ids"), "3 ids came, the engine counts 4"),
        ("sglang", put(9, "meta_info", "prompt_tokens"), "3 ids came, the engine counts 9"),
        ("sglang", put([11, 12, 14, 99], "output_ids"), "name other ids than output_ids"),
        ("sglang", put([11, 12, True, 99], "output_ids"), "no list of token ids"),
        ("sglang", put({"type": "stop", "matched": 13}, "meta_info", "finish_reason"), "ended the answer by 'stop' 13"),
        ("sglang", put({"type": "stop", "matched": "x"}, "meta_info", "finish_reason"), "by 'stop' 'x'"),
        ("sglang", put({"type": "abort", "message": "no"}, "meta_info", "finish_reason"), "by 'abort'"),
        ("sglang", put({"type": "length"}, "meta_info", "finish_reason"), "4 ids and was cut by length"),
        ("sglang", put(None, "meta_info"), "meta_info is no JSON object"),
        ("sglang", put([], "meta_info", "output_top_logprobs"), "not as many"),
        ("sglang", put([[None, 11, None]] * 4, "meta_info", "output_token_logprobs"), "is no logprob"),
        ("vllm", without("choices", 0, "token_ids"), "vllm token_ids: the engine was asked for token ids"),
        ("vllm", put(None, "choices", 0, "token_ids"), "asked for token ids and returned none"),
        ("vllm", without("choices", 0, "prompt_token_ids"), "vllm prompt_token_ids: the engine was asked"),
        ("vllm", put([5, 6, 8], "choices", 0, "prompt_token_ids"), "not the prompt that was sent"),
        ("vllm", put(3, "usage", "completion_tokens"), "4 ids came, the engine counts 3"),
        ("vllm", put(["a"] * 4, "choices", 0, "logprobs", "tokens"), "a text where an id was asked for"),
        ("vllm", put(13, "choices", 0, "stop_reason"), "by 'stop' 13"),
        ("vllm", put("abort", "choices", 0, "finish_reason"), "by 'abort'"),
        ("vllm", put([], "choices"), "holds another number"),
        ("vllm", put([], "choices", 0, "token_ids"), "0 ids came, the engine counts 4"),
        ("vllm", put(None, "choices", 0, "logprobs"), "logprobs is no JSON object"),
    ],
)
def test_an_answer_to_something_else_is_an_error(name: Name, spoil: Spoil, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        generation(stand_in(name, spoil=spoil))


@pytest.mark.parametrize("name", ENGINES)
def test_an_error_status_says_what_the_server_said(name: Name) -> None:
    with pytest.raises(EngineError, match=r"status 500: .*not read"):
        generation(stand_in(name, status=500))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("prompt", [(), tuple(range(20))])
def test_a_prompt_that_leaves_no_room_is_not_sent(name: Name, prompt: tuple[int, ...]) -> None:
    server = stand_in(name, context=27)
    with pytest.raises(EngineError, match=r"give at least one token|exceed the server's context of 2[57]"):
        generation(server, prompt=prompt)

    assert [] == server.asked


@pytest.mark.parametrize("name", ENGINES)
def test_where_nobody_listens_the_engine_is_gone(name: Name) -> None:
    server = stand_in(name)
    with standing_in(server):
        pass

    with pytest.raises(EngineGoneError, match="does not answer"):
        asyncio.run(asked(server))


@pytest.mark.parametrize("name, other", [("sglang", "vllm"), ("vllm", "sglang")])
def test_another_engine_than_was_named_is_found_out(name: Name, other: Name) -> None:
    async def enter(url: str) -> None:
        async with EngineServer(DIALECTS[name](), url):
            pass

    with standing_in(stand_in(other)) as server, pytest.raises(EngineError, match=r"it is no (SGLang|vLLM) of today"):
        asyncio.run(enter(server.url))


def test_in_flight_is_bounded_and_answers_keep_their_order() -> None:
    server = StandIn("sglang", lambda prompt: [*prompt, END], END, delay=0.03)

    async def many() -> list[EngineOutput]:
        async with EngineServer(DIALECTS["sglang"](), server.url, in_flight=3) as client:
            return await client.generate_all([ServerRequest((number,), GREEDY) for number in range(1, 10)])

    with standing_in(server):
        found = asyncio.run(many())

    assert [(number, END) for number in range(1, 10)] == [each.ids for each in found]
    assert 3 == server.most


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_in_flight_together_share_each_second_alike() -> None:
    clock = Clock()
    busy = BusyClock(clock)
    with busy.share() as first:
        clock.now += 4
        with busy.share() as second:
            clock.now += 2
        clock.now += 1

    assert (4 + 1 + 1, 1) == (first.seconds, second.seconds)


def test_time_in_which_nothing_is_in_flight_is_nobodys() -> None:
    clock = Clock()
    busy = BusyClock(clock)
    with busy.share() as first:
        clock.now += 1
    clock.now += 50
    with busy.share() as second:
        clock.now += 2

    assert (1, 2) == (first.seconds, second.seconds)


def test_one_that_fails_has_its_share_too() -> None:
    clock = Clock()
    share = RequestSeconds()

    def fail() -> None:
        nonlocal share
        with BusyClock(clock).share() as share:
            clock.now += 3
            raise ValueError("cut")

    with pytest.raises(ValueError, match="cut"):
        fail()

    assert 3 == share.seconds
