"""A chat completion request, read: whom it is for, what it asks, and how to sample.

Guarantees: what is returned can be answered. Refuses, in OpenRouter's own words, what OpenRouter would refuse: bad
JSON, an unknown model, a provider that has no endpoint or lacks a demanded parameter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from harness.emulator.catalog import find_profile, parameters
from harness.emulator.errors import BAD_REQUEST, NOT_FOUND, ApiError
from harness.views.view import PROFILES, Profile
from pipeline.records import Json, JsonObject, Prompt

DEMANDS = ("seed", "logprobs", "top_logprobs", "return_token_ids", "tools", "top_p", "top_k", "min_p", "logit_bias")
"""Parameters that `require_parameters` demands of an endpoint when the request has them."""

HOTTEST = 2.0
SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The request's own choices. `max_tokens` None: as many as fit. `tools_sent`: calls are to come back parsed."""

    profile: Profile
    prompt: Prompt
    stream: bool
    tools_sent: bool
    max_tokens: int | None
    temperature: float
    seed: int | None
    logprobs: bool
    return_token_ids: bool
    sample_id: str | None


def read_request(raw: bytes, model: str) -> ChatRequest:
    """Reads the body; ApiError for whatever is wrong with it."""
    body = _object(raw)
    _require_model(body, model)
    profile = _profile(body, model)
    tools = _objects(body, "tools")
    return ChatRequest(
        profile=profile,
        prompt=Prompt("", _messages(body), tuple(tools), thinking=_thinking(body)),
        stream=_flag(body, "stream"),
        tools_sent=bool(tools),
        max_tokens=_max_tokens(body),
        temperature=_temperature(body),
        seed=_seed(body),
        logprobs=_flag(body, "logprobs") and profile.returns_logprobs,
        return_token_ids=_flag(body, "return_token_ids") and profile.returns_ids,
        sample_id=_sample_id(body),
    )


def _bad(message: str) -> ApiError:
    return ApiError(BAD_REQUEST, message)


def _object(raw: bytes) -> JsonObject:
    try:
        body: Json = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _bad("Invalid JSON in request body") from None
    if not isinstance(body, dict):
        raise _bad("Input must be a JSON object")
    return body


def _require_model(body: JsonObject, model: str) -> None:
    asked = body.get("model")
    if not isinstance(asked, str):
        raise _bad("No models provided")
    if asked != model:
        raise _bad(f"{asked} is not a valid model ID")


def _profile(body: JsonObject, model: str) -> Profile:
    wanted = body.get("provider")
    choice = wanted if isinstance(wanted, dict) else {}
    names = list(_names(choice))
    profile = find_profile(names[0]) if names else next(iter(PROFILES.values()))
    if profile is None:
        raise ApiError(NOT_FOUND, f"No endpoints found for {model}.")
    honoured = parameters(profile)
    missing = [name for name in DEMANDS if body.get(name) not in (None, False, []) and name not in honoured]
    if missing and choice.get("require_parameters") is True:
        where = "https://openrouter.ai/docs/guides/routing/provider-selection"
        message = "No endpoints found that can handle the requested parameters."
        raise ApiError(NOT_FOUND, f"{message} To learn more about provider routing, visit: {where}")
    return profile


def _names(choice: JsonObject) -> Iterator[str]:
    for field in ("only", "order"):
        names = choice.get(field)
        if isinstance(names, list):
            yield from (name for name in names if isinstance(name, str))


def _objects(body: JsonObject, field: str) -> list[JsonObject]:
    value = body.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _bad(f"Invalid input: {field} must be an array of objects")
    return [entry for entry in value if isinstance(entry, dict)]


def _messages(body: JsonObject) -> tuple[JsonObject, ...]:
    messages = _objects(body, "messages")
    if not messages:
        raise _bad('Input required: specify "prompt" or "messages"')
    return tuple(messages)


def _thinking(body: JsonObject) -> bool:
    """OpenRouter's `reasoning`, or the switch that vLLM and SGLang take."""
    reasoning, template = body.get("reasoning"), body.get("chat_template_kwargs")
    if isinstance(reasoning, dict) and (reasoning.get("enabled") is False or reasoning.get("effort") == "none"):
        return False
    return not (isinstance(template, dict) and template.get("thinking") is False)


def _flag(body: JsonObject, field: str) -> bool:
    value = body.get(field)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"Invalid input: {field} must be a boolean")
    return value is True


def _max_tokens(body: JsonObject) -> int | None:
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad("Invalid input: max_tokens must be an integer of at least 1")
    return value


def _temperature(body: JsonObject) -> float:
    value = body.get("temperature")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= HOTTEST:
        raise _bad(f"Invalid input: temperature must be a number from 0 to {HOTTEST:g}")
    return float(value)


def _seed(body: JsonObject) -> int | None:
    value = body.get("seed")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value.bit_length() > SEED_BITS:
        raise _bad("Invalid input: seed must be an integer")
    return value


def _sample_id(body: JsonObject) -> str | None:
    user, metadata = body.get("user"), body.get("metadata")
    if isinstance(user, str):
        return user
    named = metadata.get("sample_id") if isinstance(metadata, dict) else None
    return named if isinstance(named, str) else None
