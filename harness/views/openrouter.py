"""OpenRouter's dialect: an answer as body or as stream.

Guarantees: shapes are those of real recordings: keep-alive white space and comments, `native_finish_reason`, usage with
cost, a usage chunk before `[DONE]`. Ids and logprobs have vLLM's form, where a profile returns them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from harness.views.view import Shown
from pipeline.records import Delta, Ids, Json, TokenLogprob

KEEP_ALIVE = "\n         \n\n         \n"
"""What OpenRouter sends before a body while it waits."""

COMMENT = ": OPENROUTER PROCESSING\n\n"


@dataclass(frozen=True, slots=True)
class Meta:
    """What a response says of itself.

    `cost` in USD. Ids and logprobs are sent only where they are set.
    """

    generation_id: str
    created: int
    model: str
    provider: str
    prompt_tokens: int
    cost: float
    prompt_ids: Ids | None = None
    token_ids: Ids | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


def body_of(shown: Shown, meta: Meta) -> dict[str, Json]:
    """Return the chat.completion object."""
    choice: dict[str, Json] = {
        "index": 0,
        "logprobs": _logprobs(meta.logprobs),
        "finish_reason": shown.finish_reason,
        "native_finish_reason": shown.native_finish_reason,
        "message": _message(shown),
    }
    if meta.token_ids is not None:
        choice["token_ids"] = list(meta.token_ids)
    body: dict[str, Json] = {**_head(meta, "chat.completion"), "choices": [choice], "usage": _usage(shown, meta)}
    if meta.prompt_ids is not None:
        body["prompt_token_ids"] = list(meta.prompt_ids)
    return body


def events_of(shown: Shown, meta: Meta) -> Iterator[str]:
    """Yield the events of a stream, comments among them.

    Each has its blank line.
    """
    yield COMMENT
    head = _head(meta, "chat.completion.chunk")
    if meta.prompt_ids is not None:
        yield _event({**head, "prompt_token_ids": list(meta.prompt_ids), "choices": [_choice({"content": ""})]})
    for position, delta in enumerate(shown.deltas):
        if delta.field != "tool_calls":
            yield _event({**head, "choices": [_choice(_text_delta(delta))]})
        if position % 16 == 15:  # noqa: PLR2004 — comments come between chunks now and then
            yield COMMENT
    for index, call in enumerate(shown.tool_calls):
        first: Json = {
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        rest: Json = {"index": index, "function": {"arguments": call.arguments}}
        for part in (first, rest):
            yield _event({**head, "choices": [_choice({"content": None, "tool_calls": [part]})]})
    yield _event({**head, "choices": [_last_choice(shown, meta)]})
    yield _event({**head, "choices": [_choice({"content": ""})], "usage": _usage(shown, meta)})
    yield "data: [DONE]\n\n"


def _event(chunk: dict[str, Json]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _head(meta: Meta, kind: str) -> dict[str, Json]:
    return {
        "id": meta.generation_id,
        "object": kind,
        "created": meta.created,
        "model": meta.model,
        "provider": meta.provider,
        "system_fingerprint": None,
    }


def _message(shown: Shown) -> dict[str, Json]:
    message: dict[str, Json] = {
        "role": "assistant",
        "content": shown.content,
        "refusal": None,
        "reasoning": shown.reasoning,
    }
    if shown.reasoning is not None:
        message["reasoning_details"] = [_reasoning_detail(shown.reasoning)]
    if shown.tool_calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "index": index,
                "id": call.id,
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(shown.tool_calls)
        ]
    return message


def _usage(shown: Shown, meta: Meta) -> dict[str, Json]:
    return {
        "prompt_tokens": meta.prompt_tokens,
        "completion_tokens": shown.completion_tokens,
        "total_tokens": meta.prompt_tokens + shown.completion_tokens,
        "cost": meta.cost,
        "is_byok": False,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": -(-len(shown.reasoning or "") // 4)},
    }


def _choice(delta: dict[str, Json]) -> dict[str, Json]:
    whole: dict[str, Json] = {"role": "assistant", **delta}
    return {"index": 0, "delta": whole, "finish_reason": None, "native_finish_reason": None, "logprobs": None}


def _last_choice(shown: Shown, meta: Meta) -> dict[str, Json]:
    """Return the finish chunk.

    Ids and logprobs come with it, as engines that buffer them do.
    """
    choice = _choice({"content": ""})
    choice["finish_reason"] = shown.finish_reason
    choice["native_finish_reason"] = shown.native_finish_reason
    choice["logprobs"] = _logprobs(meta.logprobs)
    if meta.token_ids is not None:
        choice["token_ids"] = list(meta.token_ids)
    return choice


def _text_delta(delta: Delta) -> dict[str, Json]:
    if delta.field == "content":
        return {"content": delta.text}
    return {"content": "", "reasoning": delta.text, "reasoning_details": [_reasoning_detail(delta.text)]}


def _reasoning_detail(text: str) -> dict[str, Json]:
    return {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}


def _logprobs(entries: tuple[TokenLogprob, ...] | None) -> Json:
    if entries is None:
        return None
    content: list[Json] = [
        {"token": entry.token, "logprob": entry.logprob or 0.0, "bytes": list(entry.data or b""), "top_logprobs": []}
        for entry in entries
    ]
    return {"content": content, "refusal": None}
