"""Read endpoints: answers that are not what OpenRouter documents are errors that name the path."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.generation.engines.catalog import (
    CatalogError,
    Endpoint,
    fetch_endpoint,
    fetch_endpoints,
    fetch_key,
)
from pipeline.generation.engines.openrouter import NoAnswerError, OpenRouter
from pipeline.records import Route

ENTRY = {
    "provider_name": "SiliconFlow",
    "tag": "siliconflow/fp8",
    "pricing": {"prompt": "0.00000055", "completion": "0.000003", "request": "0"},
    "context_length": 262144,
    "max_completion_tokens": None,
    "supported_parameters": ["seed", "tools"],
}
ROUTE = Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow")


@contextlib.contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[OpenRouter]:
    """A client of a server that gives this body to every GET."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield OpenRouter(f"http://127.0.0.1:{server.server_port}/api/v1")
        finally:
            server.shutdown()
            thread.join()


def endpoints(*entries: object) -> bytes:
    return json.dumps({"data": {"id": "moonshotai/kimi-k2.5", "endpoints": list(entries)}}).encode()


async def read_endpoints(client: OpenRouter) -> tuple[Endpoint, ...]:
    async with client:
        return await fetch_endpoints(client, ROUTE.model)


async def read_endpoint(client: OpenRouter) -> Endpoint:
    async with client:
        return await fetch_endpoint(client, ROUTE)


def test_prices_are_exact() -> None:
    with answering(endpoints(ENTRY)) as client:
        endpoint = asyncio.run(read_endpoints(client))[0]

    expected = Endpoint(
        provider_name="SiliconFlow",
        tag="siliconflow/fp8",
        prompt_usd=Decimal("0.00000055"),
        completion_usd=Decimal("0.000003"),
        request_usd=Decimal(0),
        context_length=262144,
        max_completion_tokens=None,
        supported_parameters=frozenset({"seed", "tools"}),
    )
    assert expected == endpoint


def test_a_slug_finds_the_endpoint_of_its_tag() -> None:
    with answering(endpoints({**ENTRY, "tag": "chutes"}, ENTRY)) as client:
        assert asyncio.run(read_endpoint(client)).tag == "siliconflow/fp8"


def test_two_endpoints_of_one_provider_are_not_chosen_between() -> None:
    entries = endpoints(ENTRY, {**ENTRY, "tag": "siliconflow/int4"})
    with answering(entries) as client, pytest.raises(CatalogError, match="has 2 endpoints at 'siliconflow'"):
        asyncio.run(read_endpoint(client))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"pricing": {"prompt": "-1", "completion": "0"}}, "'-1' is no price"),
        ({"pricing": {"prompt": "NaN", "completion": "0"}}, "'NaN' is no price"),
        ({"pricing": {"prompt": "0", "completion": "1e400"}}, "'1e400' USD is no price"),
        ({"pricing": {"prompt": 1.01, "completion": "0"}}, "1.01 USD is no price"),
        ({"pricing": {"prompt": "free", "completion": "0"}}, "an amount of USD is wanted where 'free' stands"),
        ({"pricing": {"completion": "0"}}, "an amount of USD is wanted where None stands"),
        ({"pricing": None}, "an object is wanted where NoneType stands"),
        ({"context_length": "big"}, "a number of tokens is wanted where 'big' stands"),
        ({"max_completion_tokens": True}, "a number of tokens is wanted where True stands"),
        ({"supported_parameters": None}, "an endpoint without supported_parameters"),
    ],
)
def test_an_entry_that_is_not_as_documented_is_an_error(change: dict[str, object], message: str) -> None:
    """A worst case that cannot be computed must not be taken for zero."""
    with answering(endpoints({**ENTRY, **change})) as client, pytest.raises(CatalogError) as caught:
        asyncio.run(read_endpoints(client))

    assert f"/models/moonshotai/kimi-k2.5/endpoints: {message}" in str(caught.value)


@pytest.mark.parametrize(
    "body,status,message",
    [
        (
            b"<html>",
            200,
            "/key answered 200 with 6 bytes that are not JSON (Expecting value: line 1 column 1 (char 0))",
        ),
        (b"[]", 200, "/key answered 200: no 'data', and no error message either"),
        (b'{"error":{"message":"User not found.","code":401}}', 401, "/key answered 401: User not found."),
        (b'{"data":[]}', 200, "/key: an object is wanted where list stands"),
        (b'{"data":{}}', 200, "/key: an amount of USD is wanted where None stands"),
    ],
)
def test_a_key_that_is_not_as_documented_is_an_error(body: bytes, status: int, message: str) -> None:
    async def read(client: OpenRouter) -> None:
        async with client:
            await fetch_key(client)

    with answering(body, status) as client, pytest.raises(CatalogError) as caught:
        asyncio.run(read(client))

    assert message == str(caught.value)


def test_a_list_of_endpoints_that_is_none_is_an_error() -> None:
    with answering(b'{"data":{"endpoints":{}}}') as client, pytest.raises(CatalogError, match="a list is wanted"):
        asyncio.run(read_endpoints(client))


def test_a_host_that_is_not_there_is_said_to_be_unreachable() -> None:
    with pytest.raises(NoAnswerError, match=r"127\.0\.0\.1:1 could not be reached"):
        asyncio.run(read_endpoints(OpenRouter("http://127.0.0.1:1/api/v1")))
