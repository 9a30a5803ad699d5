"""A chat completion request, read: provider, prompt, and sampling.

Guarantees: what is returned can be answered. Refuses, in OpenRouter's own words, what OpenRouter would refuse: bad
JSON, an unknown model, a provider that has no endpoint or lacks a demanded parameter.
"""

from __future__ import annotations

import json
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
    """What one request chose.

    `max_tokens` None: as many as fit. `tools_sent`: calls come back parsed.
    """

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
    """Read the body.

    Raises ApiError for whatever is wrong with it.
    """
    body = body_object(raw)
    named = body.get("model")
    if not isinstance(named, str):
        raise _bad("No models provided")
    if named != model:
        raise _bad(f"{named} is not a valid model ID")
    profile = chosen_profile(body, model)
    tools = _objects(body, "tools")
    messages = _objects(body, "messages")
    if not messages:
        raise _bad('Input required: specify "prompt" or "messages"')
    return ChatRequest(
        profile=profile,
        prompt=Prompt("", tuple(messages), tuple(tools), thinking=thinking_of(body)),
        stream=_flag(body, "stream"),
        tools_sent=bool(tools),
        max_tokens=max_tokens_of(body),
        temperature=temperature_of(body),
        seed=seed_of(body),
        logprobs=_flag(body, "logprobs") and profile.returns_logprobs,
        return_token_ids=_flag(body, "return_token_ids") and profile.returns_ids,
        sample_id=sample_id_of(body),
    )


def body_object(raw: bytes) -> JsonObject:
    """Parse the body as a JSON object."""
    try:
        body: Json = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _bad("Invalid JSON in request body") from None
    if not isinstance(body, dict):
        raise _bad("Input must be a JSON object")
    return body


def chosen_profile(body: JsonObject, model: str) -> Profile:
    """Return the provider that is asked for.

    What `provider.only` or `provider.order` names, else the first. Raises ApiError.
    """
    wanted = body.get("provider")
    choice = wanted if isinstance(wanted, dict) else {}
    lists = [value for field in ("only", "order") if isinstance(value := choice.get(field), list)]
    names = [name for value in lists for name in value if isinstance(name, str)]
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


def thinking_of(body: JsonObject) -> bool:
    """Read OpenRouter's `reasoning`, or the switch of vLLM and SGLang."""
    reasoning, template = body.get("reasoning"), body.get("chat_template_kwargs")
    if isinstance(reasoning, dict) and (reasoning.get("enabled") is False or reasoning.get("effort") == "none"):
        return False
    return not (isinstance(template, dict) and template.get("thinking") is False)


def max_tokens_of(body: JsonObject) -> int | None:
    """Read the limit of the answer in tokens."""
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad("Invalid input: max_tokens must be an integer of at least 1")
    return value


def temperature_of(body: JsonObject) -> float:
    """Read the temperature; 1 where none is given."""
    value = body.get("temperature")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= HOTTEST:
        raise _bad(f"Invalid input: temperature must be a number from 0 to {HOTTEST:g}")
    return float(value)


def seed_of(body: JsonObject) -> int | None:
    """Read the seed."""
    value = body.get("seed")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value.bit_length() > SEED_BITS:
        raise _bad("Invalid input: seed must be an integer")
    return value


def sample_id_of(body: JsonObject) -> str | None:
    """Read the sample's id from `user` or the metadata."""
    user, metadata = body.get("user"), body.get("metadata")
    if isinstance(user, str):
        return user
    named = metadata.get("sample_id") if isinstance(metadata, dict) else None
    return named if isinstance(named, str) else None


def _objects(body: JsonObject, field: str) -> list[JsonObject]:
    value = body.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _bad(f"Invalid input: {field} must be an array of objects")
    return [entry for entry in value if isinstance(entry, dict)]


def _flag(body: JsonObject, field: str) -> bool:
    value = body.get(field)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"Invalid input: {field} must be a boolean")
    return value is True


def _bad(message: str) -> ApiError:
    return ApiError(BAD_REQUEST, message)
