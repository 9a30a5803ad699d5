"""The body of a chat completion request.

Guarantees: it says all that OpenRouter must not decide for us: one provider, no fallback, no rewriting of prompt or
answer, no thinking budget. Refuses settings that would replace any of that, and tools in a mode that cannot carry them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pipeline.formats.format import Format
from pipeline.records import JsonObject, Prompt, Reason, RefusedError, Route, Sampling, ToolMode

PLUGINS: Final = ({"id": "context-compression", "enabled": False},)
"""Context compression is on by default for short contexts; response healing is off unless named, so it is not named."""

FORCED: Final = frozenset(
    {
        *("tool_choice", "response_format", "structured_outputs", "grammar", "json_schema", "regex", "ebnf"),
        *("guided_json", "guided_regex", "guided_grammar", "guided_choice", "logit_bias", "bad_words", "prediction"),
        *("thinking", "thinking_budget", "thinking_token_budget", "max_thinking_tokens", "reasoning_effort"),
        *("chat_template_kwargs", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "continue_final_message"),
    }
)
"""Settings that force, forbid or cut off tokens that the text does not show: no count tells of them."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """Which endpoints may see the prompts.

    Those that collect no data, that allow distillation, that retain nothing.
    """

    data_collection: Literal["deny", "allow"] = "deny"
    enforce_distillable_text: bool = True
    zdr: bool = False


def request_body(
    prompt: Prompt,
    route: Route,
    sampling: Sampling,
    tool_mode: ToolMode,
    fmt: Format,
    sample_id: str,
    *,
    privacy: Privacy | None = None,
    supported: frozenset[str] | None = None,
) -> dict[str, object]:
    """Return the request for one row, keys in fixed order.

    Field names: OpenRouter's API reference, 2026-08. `supported` holds the endpoint's `supported_parameters`; a seed,
    logprobs or ids that it lacks are not asked for, since `require_parameters` would drop the endpoint. `sample_id`
    goes as `user` and makes every body its own. Raises ValueError, RefusedError.
    """
    # The template's own switches, where it has some; a server that ignores them shows in the count.
    switches = dict(fmt.template_switches)
    body: dict[str, object] = {
        "model": route.model,
        **_messages_and_tools(prompt, tool_mode, fmt),
        "stream": route.stream,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        **_optional(sampling, supported),
        "reasoning": {"enabled": prompt.thinking},
        **({"chat_template_kwargs": switches} if switches else {}),
        "usage": {"include": True},
        "provider": _provider(route, privacy or Privacy()),
        "plugins": list(PLUGINS),
        "user": sample_id,
    }
    if taken := sorted(set(sampling.extra) & set(body)):
        raise ValueError(f"sampling.extra sets {taken[0]!r}, which the request sets itself. Leave it out.")
    if forced := sorted(set(sampling.extra) & FORCED):
        raise ValueError(f"sampling.extra sets {forced[0]!r}, which forces tokens that no text shows. Leave it out.")
    return {**body, **sampling.extra}


def _provider(route: Route, privacy: Privacy) -> dict[str, object]:
    if not route.provider:
        raise ValueError(f"route {route.name!r} pins no provider. Name one, as in openrouter/siliconflow.")
    pinned: dict[str, object] = {
        "only": [route.provider],
        "allow_fallbacks": False,
        "require_parameters": True,
        "data_collection": privacy.data_collection,
    }
    if privacy.enforce_distillable_text:
        pinned["enforce_distillable_text"] = True
    if privacy.zdr:
        pinned["zdr"] = True
    return pinned


def _optional(sampling: Sampling, supported: frozenset[str] | None) -> dict[str, object]:
    wanted: dict[str, object] = {
        "seed": sampling.seed,
        "logprobs": sampling.logprobs or None,
        "return_token_ids": sampling.return_token_ids or None,
    }
    return {
        name: value for name, value in wanted.items() if value is not None and (supported is None or name in supported)
    }


def _messages_and_tools(prompt: Prompt, tool_mode: ToolMode, fmt: Format) -> dict[str, object]:
    messages: list[JsonObject] = list(prompt.messages)
    if not prompt.tools:
        return {"messages": messages}
    if tool_mode is ToolMode.NONE:
        message = "the prompt declares tools and the tool mode is none, so the model would not see them"
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field="tools")
    if tool_mode is ToolMode.RAW:
        return {"messages": [{"role": "tool_declare", "content": fmt.declare_tools(prompt.tools)}, *messages]}
    return {"messages": messages, "tools": list(prompt.tools)}
