"""Read OpenRouter's free endpoints: prices, limits, past generations.

Guarantees: prices are exact decimals in USD a token. An answer that is not the documented JSON is a CatalogError that
names the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pipeline.base.json_lines import foreign_json
from pipeline.base.money import MOST_PICO, PICO_PER_USD
from pipeline.base.redaction import redact
from pipeline.generation.engines.openrouter import HttpAnswer, OpenRouter
from pipeline.records import Json, JsonObject, Route

OK = 200
NOT_FOUND = 404
MOST_PRICE = Decimal(1)
"""USD a token or a request: a thousand times the dearest that is known. Above it no worst case can be booked."""
MOST_LEFT = Decimal(MOST_PICO // PICO_PER_USD)
"""USD that a key may still spend; what is above no run could."""


class CatalogError(Exception):
    """A read endpoint answered with an error, or unexpected JSON."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One provider's offer of one model.

    Prices are in USD a token, lengths in tokens; parameters are by name.
    """

    provider_name: str
    tag: str
    prompt_usd: Decimal
    completion_usd: Decimal
    request_usd: Decimal
    context_length: int
    max_completion_tokens: int | None
    supported_parameters: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What the key has spent and may spend, in USD.

    None where there is no limit. A key that was overdrawn has nothing remaining.
    """

    usage_usd: Decimal
    limit_usd: Decimal | None
    remaining_usd: Decimal | None


async def fetch_endpoints(client: OpenRouter, model: str) -> tuple[Endpoint, ...]:
    """Read `GET /models/{author}/{slug}/endpoints`."""
    path = f"/models/{model}/endpoints"
    data = _object(_data(await client.get(path), path), path)
    entries = data.get("endpoints")
    if not isinstance(entries, list):
        raise CatalogError(f"{path}: a list is wanted where {type(entries).__name__} stands")
    return tuple(_endpoint(_object(entry, path), path) for entry in entries)


async def fetch_endpoint(client: OpenRouter, route: Route) -> Endpoint:
    """Return the one endpoint that the route pins.

    Raises CatalogError where the provider offers none, or several.
    """
    offers = await fetch_endpoints(client, route.model)
    mine = [offer for offer in offers if route.provider in {offer.tag, offer.tag.split("/")[0]}]
    if len(mine) != 1:
        tags = ", ".join(offer.tag for offer in offers) or "none"
        message = f"{route.model} has {len(mine)} endpoints at {route.provider!r}, wanted one; it has {tags}"
        raise CatalogError(f"{message}. Name one of these as the route's provider.")
    return mine[0]


async def fetch_key(client: OpenRouter) -> KeyLimits:
    """Read `GET /key`.

    A bad key is a CatalogError with status 401.
    """
    data = _object(_data(await client.get("key"), "/key"), "/key")
    usage = _usd(data.get("usage"), "/key")  # an answer without it is not that of a key, so its limits are not believed
    limit, left = _optional_usd(data.get("limit"), "/key"), data.get("limit_remaining")
    overdrawn = isinstance(left, int | float) and not isinstance(left, bool) and left < 0
    remaining = Decimal(0) if overdrawn else _optional_usd(left, "/key")
    return KeyLimits(usage, limit, None if remaining is None else min(remaining, MOST_LEFT))


async def fetch_generation(client: OpenRouter, generation_id: str) -> JsonObject | None:
    """Read `GET /generation`.

    None while OpenRouter does not know it yet, which is usual right after the answer.
    """
    answer = await client.get("generation", id=generation_id)
    if answer.status == NOT_FOUND:
        return None
    return _object(_data(answer, "/generation"), "/generation")


def _data(answer: HttpAnswer, path: str) -> Json:
    try:
        body = foreign_json(answer.raw)
    except ValueError as unread:
        what = f"{len(answer.raw)} bytes that are not JSON ({redact(str(unread), 100)})"
        raise CatalogError(f"{path} answered {answer.status} with {what}") from None
    if answer.status != OK or not isinstance(body, dict) or "data" not in body:
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        why = redact(message, 200) if isinstance(message, str) else "no 'data', and no error message either"
        raise CatalogError(f"{path} answered {answer.status}: {why}")
    return body["data"]


def _object(value: Json, path: str) -> JsonObject:
    if not isinstance(value, Mapping):
        raise CatalogError(f"{path}: an object is wanted where {type(value).__name__} stands")
    return value


def _endpoint(entry: JsonObject, path: str) -> Endpoint:
    prices = _object(entry.get("pricing"), path)
    names, most = entry.get("supported_parameters"), entry.get("max_completion_tokens")
    if not isinstance(names, list):
        raise CatalogError(f"{path}: an endpoint without supported_parameters")
    return Endpoint(
        provider_name=str(entry.get("provider_name")),
        tag=str(entry.get("tag")),
        prompt_usd=_price(prices.get("prompt"), path),
        completion_usd=_price(prices.get("completion"), path),
        request_usd=_price(prices.get("request", "0"), path),
        context_length=_count(entry.get("context_length"), path),
        max_completion_tokens=None if most is None else _count(most, path),
        supported_parameters=frozenset(str(name) for name in names),
    )


def _usd(value: Json, path: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise CatalogError(f"{path}: an amount of USD is wanted where {value!r:.60} stands")
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise CatalogError(f"{path}: an amount of USD is wanted where {value!r:.60} stands") from None
    if not amount.is_finite() or amount < 0:
        raise CatalogError(f"{path}: {value!r:.60} is no price; -1 says that it varies, so no worst case is known")
    return amount


def _price(value: Json, path: str) -> Decimal:
    if (price := _usd(value, path)) > MOST_PRICE:
        raise CatalogError(
            f"{path}: {value!r:.60} USD is no price of a token or a request, which is at most {MOST_PRICE}"
        )
    return price


def _optional_usd(value: Json, path: str) -> Decimal | None:
    return None if value is None else _usd(value, path)


def _count(value: Json, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CatalogError(f"{path}: a number of tokens is wanted where {value!r:.60} stands")
    return value
