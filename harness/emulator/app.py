"""The emulator's ASGI application: OpenRouter's chat completions and its read endpoints, over one Service.

Guarantees: errors have OpenRouter's shapes and statuses; `/models` needs no key, the rest one if `require_key` is set.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from harness.emulator.catalog import endpoint_entries, model_entry
from harness.emulator.errors import NO_CREDIT, NOT_FOUND, UNAUTHORIZED, ApiError, rate_limited
from harness.emulator.request import read_request
from harness.emulator.service import Service, body_chunks, open_exchange
from pipeline.records import Json

KEY_PREFIX = "Bearer sk-or-"

Handler: TypeAlias = Callable[[Service, Request], Awaitable[Response]]


def create_app(service: Service) -> Starlette:
    """The application; its shutdown closes the answerer."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.answerer.close()

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(f"/api/v1{path}", functools.partial(_shaped, handler, service), methods=[method])

    routes = [
        route("/chat/completions", _chat, "POST"),
        route("/models", _models),
        route("/models/{author}/{slug}/endpoints", _endpoints),
        route("/generation", _generation),
        route("/key", _key),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def _shaped(handler: Handler, service: Service, request: Request) -> Response:
    """The handler's response, or its ApiError as one."""
    try:
        return await handler(service, request)
    except ApiError as error:
        return Response(error.body(), error.status, error.headers, "application/json")


async def _chat(service: Service, request: Request) -> Response:
    _require_key(service, request)
    _require_rate(service)
    if service.account.spent:
        raise ApiError(NO_CREDIT, "Insufficient credits. Add more using https://openrouter.ai/settings/credits")
    asked = read_request(await request.body(), service.model)
    if (fault := service.faults.before(asked)) is not None:
        raise fault
    exchange = open_exchange(service, asked)
    headers = {
        "X-Generation-Id": exchange.generation_id,
        "X-Provider-Name": asked.profile.name,
        "Access-Control-Expose-Headers": "X-Generation-Id,X-Provider-Name,cf-ray",
        "Cache-Control": "no-cache" if asked.stream else "no-store",
    }
    chunks = service.faults.body(body_chunks(service, exchange))
    return StreamingResponse(
        chunks, headers=headers, media_type="text/event-stream" if asked.stream else "application/json"
    )


def _require_key(service: Service, request: Request) -> None:
    if not service.require_key:
        return
    given = request.headers.get("authorization")
    if given is None:
        raise ApiError(UNAUTHORIZED, "Missing Authentication header")
    if not given.startswith(KEY_PREFIX):
        raise ApiError(UNAUTHORIZED, "No cookie auth credentials found")


def _require_rate(service: Service) -> None:
    wait = service.rate.wait()
    if wait is not None:
        raise rate_limited(service.rate.per_minute or 0, int((time.time() + wait) * 1000), math.ceil(wait))


async def _models(service: Service, _: Request) -> Response:
    return _data([model_entry(service.model, service.context)])


async def _endpoints(service: Service, request: Request) -> Response:
    model = f"{request.path_params['author']}/{request.path_params['slug']}"
    if model != service.model:
        raise ApiError(NOT_FOUND, f"No endpoints found for {model}.")
    return _data(endpoint_entries(model, service.context))


async def _generation(service: Service, request: Request) -> Response:
    _require_key(service, request)
    generation_id = request.query_params.get("id", "")
    record = service.account.generation(generation_id)
    if record is None:
        raise ApiError(NOT_FOUND, f"Generation {generation_id} not found")
    return _data(record)


async def _key(service: Service, request: Request) -> Response:
    _require_key(service, request)
    return _data(service.account.key_entry())


def _data(data: Json) -> Response:
    return Response(json.dumps({"data": data}, ensure_ascii=False), media_type="application/json")
