"""What the emulator says beside answers, and in their place: lists, limits, errors, faults. No torch."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import httpx2
import pytest

from harness.emulator.account import Account, RateLimit
from harness.emulator.answers import Ask, PoolAnswerer, Sampled
from harness.emulator.server import Terms, emulator_in_process
from harness.emulator.service import Faults
from harness.tiny_target.vocabulary import write_vocabulary
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.generation.engines.catalog import CatalogError, fetch_endpoint, fetch_generation, fetch_key
from pipeline.generation.engines.openrouter import OpenRouter
from pipeline.records import Ids, JsonObject, Prompt, Route

MODEL = "drafter-gate/tiny-kimi"
PROVIDERS = ["SiliconFlow", "Chutes", "AtlasCloud"]
QUESTION: list[JsonObject] = [{"role": "user", "content": "What is 2 + 2?"}]
CLOSE, END = 256 + 23, 256 + 2
ANSWER: Ids = (*b"Two.", CLOSE, *b"Four.", END)
POOL = PoolAnswerer(common=[ANSWER])
ROUTING = "https://openrouter.ai/docs/guides/routing/provider-selection"
NO_PARAMETER = "No endpoints found that can handle the requested parameters."
SOME_KEY = "Bearer sk-or-v1-0123456789"
Read = TypeVar("Read")


@pytest.fixture(scope="module")
def fmt(tmp_path_factory: pytest.TempPathFactory) -> Format:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_vocabulary({bytes([value]): value for value in range(256)}, directory)
    return load_format("kimi-k2.5", load_tokenizer(directory))


@pytest.fixture
def oracle(tmp_path: Path) -> Path:
    return tmp_path / "oracle.jsonl"


def request(slug: str = "chutes", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": QUESTION, "max_tokens": 200, "provider": {"only": [slug]}, **fields}


def reading(url: str, read: Callable[[OpenRouter], Awaitable[Read]]) -> Read:
    """What the client reads from the emulator."""

    async def once() -> Read:
        async with OpenRouter(url) as client:
            return await read(client)

    return asyncio.run(once())


def test_models_and_endpoints_are_listed(fmt: Format, oracle: Path) -> None:
    route = Route("emulator", MODEL, "siliconflow")
    with emulator_in_process(fmt, POOL, oracle) as emulator:
        models = json.loads(emulator.get("/models").content)["data"]
        endpoint = reading(emulator.url, lambda client: fetch_endpoint(client, route))
        entries = json.loads(emulator.get(f"/models/{MODEL}/endpoints").content)["data"]["endpoints"]
        missing = emulator.get("/models/no/model/endpoints")

    assert [MODEL] == [entry["id"] for entry in models]
    assert ("SiliconFlow", 2048) == (endpoint.provider_name, endpoint.context_length)
    assert {"seed", "tools", "logprobs"} <= endpoint.supported_parameters
    assert Decimal(entries[0]["pricing"]["prompt"]) == endpoint.prompt_usd
    assert PROVIDERS == [entry["provider_name"] for entry in entries]
    assert (404, "No endpoints found for no/model.") == (missing.status_code, missing.json()["error"]["message"])


def test_an_endpoint_that_is_not_offered_is_told_which_are(fmt: Format, oracle: Path) -> None:
    route = Route("emulator", MODEL, "groq")
    with (
        emulator_in_process(fmt, POOL, oracle) as emulator,
        pytest.raises(CatalogError, match="siliconflow, chutes, atlascloud"),
    ):
        reading(emulator.url, lambda client: fetch_endpoint(client, route))


def test_a_catalogue_that_answers_with_an_error_says_which(fmt: Format, oracle: Path) -> None:
    with (
        emulator_in_process(fmt, POOL, oracle, Terms(require_key=True)) as emulator,
        pytest.raises(CatalogError, match="/key answered 401: No cookie auth credentials found"),
    ):
        reading(emulator.url, fetch_key)


def test_a_generation_is_unknown_at_first(fmt: Format, oracle: Path) -> None:
    now = [0.0]
    account = Account(delay=1.0, clock=lambda: now[0])
    with emulator_in_process(fmt, POOL, oracle, Terms(account=account)) as emulator:
        body = json.loads(emulator.post(request()).content)
        early = emulator.get(f"/generation?id={body['id']}")
        unknown = reading(emulator.url, lambda client: fetch_generation(client, body["id"]))
        now[0] = 1.0
        record = reading(emulator.url, lambda client: fetch_generation(client, body["id"]))

    assert early.json() == {"error": {"message": f"Generation {body['id']} not found", "code": 404}}
    assert unknown is None
    assert record is not None
    counts = (record["native_tokens_prompt"], record["native_tokens_completion"])
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == counts
    assert body["usage"]["cost"] == record["total_cost"]


def test_the_key_shows_what_was_billed(fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, POOL, oracle, Terms(account=Account(limit_usd=Decimal(1)))) as emulator:
        costs = [json.loads(emulator.post(request()).content)["usage"]["cost"] for _ in range(2)]
        limits = reading(emulator.url, fetch_key)

    assert Decimal(str(costs[0])) * 2 == limits.usage_usd
    assert Decimal(1) == limits.limit_usd
    assert Decimal(1) - limits.usage_usd == limits.remaining_usd


def test_a_key_without_a_limit_has_none_left(fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, POOL, oracle) as emulator:
        limits = reading(emulator.url, fetch_key)

    assert (None, None) == (limits.limit_usd, limits.remaining_usd)


@pytest.mark.parametrize(
    "body,status,message",
    [
        (b'{"model":', 400, "Invalid JSON in request body"),
        (b"\xff", 400, "Invalid JSON in request body"),
        (b"[]", 400, "Input must be a JSON object"),
        (request(model="no/model"), 400, "no/model is not a valid model ID"),
        (request(messages=[]), 400, 'Input required: specify "prompt" or "messages"'),
        (request(max_tokens=0), 400, "Invalid input: max_tokens must be an integer of at least 1"),
        (request(temperature=3), 400, "Invalid input: temperature must be a number from 0 to 2"),
        (request(stream="yes"), 400, "Invalid input: stream must be a boolean"),
        (request(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "Provider returned error"),
        (request("groq"), 404, f"No endpoints found for {MODEL}."),
        (
            {**request(logprobs=True), "provider": {"only": ["chutes"], "require_parameters": True}},
            404,
            f"{NO_PARAMETER} To learn more about provider routing, visit: {ROUTING}",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_costs_nothing(
    body: dict[str, object] | bytes, status: int, message: str, fmt: Format, oracle: Path
) -> None:
    with emulator_in_process(fmt, POOL, oracle) as emulator:
        response = emulator.post(body)
        entries, billed = emulator.entries(), emulator.service.account.billed_usd

    error = response.json()["error"]
    assert (status, status, message) == (response.status_code, error["code"], error["message"])
    assert ("user_id" in response.json()) == (status == 400)
    assert ([], Decimal(0)) == (entries, billed)


def test_a_request_that_is_too_long_is_told_so(fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, POOL, oracle) as emulator:
        response = emulator.post(request(max_tokens=2048))

    prompt = len(fmt.render(Prompt("", tuple(QUESTION))))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(
        f"This endpoint's maximum context length is 2048 tokens. However, you requested about {prompt + 2048} tokens "
    )


def test_a_key_is_asked_for_where_one_is_required(fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, POOL, oracle, Terms(require_key=True)) as emulator:
        none = emulator.post(request())
        other = emulator.get("/key", Authorization="Bearer emulator-needs-no-key")
        good = emulator.post(request(), Authorization=SOME_KEY)
        public = emulator.get("/models")

    assert (401, {"error": {"message": "Missing Authentication header", "code": 401}}) == (
        none.status_code,
        none.json(),
    )
    assert (401, "No cookie auth credentials found") == (other.status_code, other.json()["error"]["message"])
    assert (200, 200) == (good.status_code, public.status_code)


def test_a_spent_key_is_refused(fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, POOL, oracle, Terms(account=Account(limit_usd=Decimal("0.0000001")))) as emulator:
        statuses = [emulator.post(request()).status_code for _ in range(2)]

    assert [200, 402] == statuses


def test_too_many_requests_are_told_when_to_come_back(fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, POOL, oracle, Terms(rate=RateLimit(1))) as emulator:
        emulator.post(request())
        response = emulator.post(request())

    error = response.json()["error"]
    assert (429, 429) == (response.status_code, error["code"])
    assert error["metadata"]["headers"]["X-RateLimit-Reset"] == response.headers["x-ratelimit-reset"]
    assert ("1", "0") == (response.headers["x-ratelimit-limit"], response.headers["x-ratelimit-remaining"])
    assert int(response.headers["retry-after"]) in range(1, 61)


@pytest.mark.parametrize("stream", [False, True])
def test_a_provider_that_fails_says_so_in_a_body_of_status_200(stream: bool, fmt: Format, oracle: Path) -> None:
    with emulator_in_process(fmt, PoolAnswerer(), oracle) as emulator:
        response = emulator.post(request(stream=stream))
        billed = emulator.service.account.billed_usd

    error = json.loads(response.text.partition("data: ")[2] if stream else response.text)["error"]
    assert (200, 502, "Chutes") == (response.status_code, error["code"], error["metadata"]["provider_name"])
    assert Decimal(0) == billed


@dataclass
class Slow:
    """An answerer that waits for its gate, which another thread opens."""

    gate: threading.Event

    async def answer(self, _: Ask) -> Sampled:
        while not self.gate.is_set():  # noqa: ASYNC110  # another thread opens it
            await asyncio.sleep(0.01)
        return Sampled(ANSWER)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "stream,waiting", [(False, b"\n         \n\n         \n"), (True, b": OPENROUTER PROCESSING\n\n")]
)
def test_a_slow_answer_is_billed_though_nobody_waits(stream: bool, waiting: bytes, fmt: Format, oracle: Path) -> None:
    """It is kept alive by comments."""
    slow = Slow(threading.Event())
    with emulator_in_process(fmt, slow, oracle) as emulator:
        with (
            httpx2.Client(trust_env=False) as client,
            client.stream("POST", f"{emulator.url}/chat/completions", json=request(stream=stream)) as response,
        ):
            first = next(response.iter_bytes())
        unbilled = emulator.service.account.billed_usd
        slow.gate.set()
        while emulator.service.running:
            emulator.get("/models")
        entries = emulator.entries()

    assert first == waiting
    assert Decimal(0) == unbilled
    assert [ANSWER] == [entry.output_ids for entry in entries]
    assert emulator.service.account.billed_usd > 0


def test_faults_can_be_put_between_answer_and_wire(fmt: Format, oracle: Path) -> None:
    async def halved(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk[: len(chunk) // 2]

    with emulator_in_process(fmt, POOL, oracle, Terms(faults=Faults(body=halved))) as emulator:
        response = emulator.post(request(stream=True))

    assert "[DONE]" not in response.text
