"""The emulator's ASGI application: OpenRouter's endpoints over one Service.

Guarantees: errors have OpenRouter's shapes and statuses; `/models` needs no key, the rest one if `require_key` is set.
"""

from __future__ import annotations

import contextlib
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
    """Return the application; its shutdown closes the answerer."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.answerer.close()

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(service, request)
            except ApiError as error:
                return Response(error.body(), error.status, error.headers, "application/json")

        return Route(f"/api/v1{path}", endpoint, methods=[method])

    routes = [
        route("/chat/completions", chat, "POST"),
        route("/models", models),
        route("/models/{author}/{slug}/endpoints", endpoints),
        route("/generation", generation),
        route("/key", key),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def chat(service: Service, request: Request) -> Response:
    """Answer a chat completion, or refuse it."""
    _require_key(service, request)
    wait = service.rate.wait()
    if wait is not None:
        raise rate_limited(service.rate.per_minute or 0, int((time.time() + wait) * 1000), math.ceil(wait))
    if service.account.spent:
        raise ApiError(NO_CREDIT, "Insufficient credits. Add more using https://openrouter.ai/settings/credits")
    chat_request = read_request(await request.body(), service.model)
    if (fault := service.faults.before(chat_request)) is not None:
        raise fault
    exchange = open_exchange(service, chat_request)
    headers = {
        "X-Generation-Id": exchange.generation_id,
        "X-Provider-Name": chat_request.profile.name,
        "Access-Control-Expose-Headers": "X-Generation-Id,X-Provider-Name,cf-ray",
        "Cache-Control": "no-cache" if chat_request.stream else "no-store",
    }
    if service.faults.encoding is not None:
        headers["Content-Encoding"] = service.faults.encoding
    chunks = service.faults.body(body_chunks(service, exchange))
    return StreamingResponse(
        chunks, headers=headers, media_type="text/event-stream" if chat_request.stream else "application/json"
    )


def _require_key(service: Service, request: Request) -> None:
    if not service.require_key:
        return
    given = request.headers.get("authorization")
    if given is None:
        raise ApiError(UNAUTHORIZED, "Missing Authentication header")
    if not given.startswith(KEY_PREFIX):
        raise ApiError(UNAUTHORIZED, "No cookie auth credentials found")


async def models(service: Service, _: Request) -> Response:
    """List the one model."""
    return _data([model_entry(service.model, service.context)])


async def endpoints(service: Service, request: Request) -> Response:
    """List the model's providers."""
    model = f"{request.path_params['author']}/{request.path_params['slug']}"
    if model != service.model:
        raise ApiError(NOT_FOUND, f"No endpoints found for {model}.")
    return _data(endpoint_entries(model, service.context))


async def generation(service: Service, request: Request) -> Response:
    """Return what is known of one generation."""
    _require_key(service, request)
    generation_id = request.query_params.get("id", "")
    record = service.account.generation(generation_id)
    if record is None:
        raise ApiError(NOT_FOUND, f"Generation {generation_id} not found")
    return _data(record)


async def key(service: Service, request: Request) -> Response:
    """Return the account of the key."""
    _require_key(service, request)
    return _data(service.account.key_entry())


def _data(data: Json) -> Response:
    return Response(json.dumps({"data": data}, ensure_ascii=False), media_type="application/json")
