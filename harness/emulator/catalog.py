"""What the emulated OpenRouter offers: one model, many providers.

Guarantees: prices are decimals as text, as the real `/endpoints` gives them, and costs are exact. Emulated dollars are
not money.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from harness.views.view import PROFILES, Profile
from pipeline.records import Json

MODEL: Final = "drafter-gate/tiny-kimi"
COMMON: Final = (
    "include_reasoning",
    "max_tokens",
    "reasoning",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)
"""Parameters that every provider takes."""


def find_profile(name: str) -> Profile | None:
    """Find a profile by slug, tag or display name.

    As `provider.only` and `provider.order` may spell it.
    """
    key = name.split("/", maxsplit=1)[0].casefold()
    return next((profile for profile in PROFILES.values() if key in {profile.slug, profile.name.casefold()}), None)


def parameters(profile: Profile) -> frozenset[str]:
    """Return the request parameters that the provider honours."""
    logprobs = ("logprobs", "top_logprobs") if profile.returns_logprobs else ()
    return frozenset((*COMMON, *logprobs, *(("return_token_ids",) if profile.returns_ids else ())))


def cost_usd(profile: Profile, prompt_tokens: int, completion_tokens: int) -> Decimal:
    """Return the exact cost of one answer in USD."""
    return prompt_tokens * _price(profile.prompt_price) + completion_tokens * _price(profile.completion_price)


def _price(usd: float) -> Decimal:
    return Decimal(repr(usd))


def model_entry(model: str, context: int) -> dict[str, Json]:
    """Return the model's entry in `/models`."""
    cheapest = min(PROFILES.values(), key=lambda profile: profile.completion_price)
    return {
        "id": model,
        "canonical_slug": model,
        "name": "drafter-gate: tiny target in the Kimi layout",
        "created": 1764374400,
        "context_length": context,
        "architecture": {
            "modality": "text->text",
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "pricing": _pricing(cheapest),
        "top_provider": {"context_length": context, "max_completion_tokens": context, "is_moderated": False},
        "supported_parameters": [*sorted({name for profile in PROFILES.values() for name in parameters(profile)})],
        "reasoning": {"default_enabled": True, "mandatory": False},
    }


def endpoint_entries(model: str, context: int) -> dict[str, Json]:
    """Return the `data` of `/models/{author}/{slug}/endpoints`."""
    endpoints: list[Json] = [endpoint_entry(profile, model, context) for profile in PROFILES.values()]
    return {**model_entry(model, context), "endpoints": endpoints}


def endpoint_entry(profile: Profile, model: str, context: int) -> dict[str, Json]:
    """Return one provider's entry."""
    return {
        "name": f"{profile.name} | {model}",
        "model_id": model,
        "context_length": context,
        "pricing": _pricing(profile),
        "provider_name": profile.name,
        "tag": profile.slug,
        "quantization": "fp32",
        "max_completion_tokens": context,
        "max_prompt_tokens": None,
        "supported_parameters": [*sorted(parameters(profile))],
        "status": 0,
        "uptime_last_30m": 100,
        "supports_implicit_caching": False,
    }


def _pricing(profile: Profile) -> dict[str, Json]:
    prompt, completion = f"{_price(profile.prompt_price):f}", f"{_price(profile.completion_price):f}"
    return {"prompt": prompt, "completion": completion, "request": "0", "discount": 0}
