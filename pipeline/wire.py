"""What came over the wire, as a Completion: a chat.completion body, or the events of a stream.

Guarantees: text is what the JSON strings say, joined in order and otherwise untouched. Refuses errors in any of their
places (status 200 included), answers without a choice, streams that were cut, and chunks that contradict each other.
Formats: OpenAI's chat.completion and chat.completion.chunk with OpenRouter's additions, and the ids that vLLM and
SGLang return (`token_ids`, `prompt_token_ids`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import orjson

from pipeline.records import (
    Completion,
    Delta,
    Ids,
    Json,
    JsonObject,
    Reason,
    RefusedError,
    TokenLogprob,
    ToolCall,
    Usage,
)


def completion_of_body(body: Json) -> Completion:
    """A Completion of a chat.completion body; RefusedError for errors, no choice, or another shape."""
    if not isinstance(body, dict):
        raise _malformed(f"the response is {_kind(body)}, not an object")
    _raise_error(body)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise RefusedError(Reason.EMPTY_ANSWER, f"choices is {json.dumps(choices)[:60]}", field="choices")
    if len(choices) > 1:
        raise _malformed(f"{len(choices)} choices; one is asked for")
    choice = choices[0]
    _raise_error(choice)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _malformed(f"message is {_kind(message)}, not an object")
    _refuse_unread(message)
    return Completion(
        reasoning=_reasoning(message),
        content=_text(message, "content"),
        tool_calls=tuple(_tool_call(call) for call in _list(message, "tool_calls")),
        finish_reason=_text(choice, "finish_reason"),
        native_finish_reason=_text(choice, "native_finish_reason"),
        usage=_usage(body.get("usage")),
        provider=_text(body, "provider"),
        model=_text(body, "model"),
        generation_id=_text(body, "id"),
        logprobs=_logprobs(choice.get("logprobs")),
        prompt_ids=_ids(body.get("prompt_token_ids"), "prompt_token_ids"),
        token_ids=_ids(choice.get("token_ids"), "token_ids") or None,
    )


def completion_of_json(raw: bytes) -> Completion:
    """A Completion of a body as sent; keep-alive white space before the JSON is allowed, as JSON allows it."""
    try:
        body: Json = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _malformed(f"the response is not JSON: {error}") from None
    return completion_of_body(body)


def completion_of_sse(raw: str) -> Completion:
    """A Completion of a stream's whole text; RefusedError(STREAM_CUT) unless it ran to its finish and `[DONE]`."""
    stream = _Stream()
    for data in sse_data(raw):
        if stream.done:
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"data after [DONE]: {data[:60]}")
        if data == "[DONE]":
            stream.done = True
        else:
            stream.add(_chunk(data))
    return stream.completion()


def sse_data(raw: str) -> Iterator[str]:
    """The data of each event: comments skipped, several data lines joined, by the EventSource rules."""
    lines: list[str] = []
    for line in raw.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line == "":
            if lines:
                yield "\n".join(lines)
            lines = []
        elif line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
    if lines == ["[DONE]"] and raw.endswith("[DONE]"):
        yield "[DONE]"  # whoever saved the stream left out its last, empty line
    elif lines:
        raise RefusedError(Reason.STREAM_CUT, f"the last event has no blank line after it: {lines[0][:60]}")


def _chunk(data: str) -> dict[str, Json]:
    try:
        chunk: Json = orjson.loads(data)
    except orjson.JSONDecodeError:
        chunk = _chunk_with_surrogates(data)
    if not isinstance(chunk, dict):
        raise RefusedError(Reason.STREAM_INCONSISTENT, f"an event is {_kind(chunk)}, not an object")
    return chunk


def _chunk_with_surrogates(data: str) -> Json:
    """Half a surrogate pair is JSON, though no UTF-8: a later stage refuses it by its own name."""
    try:
        chunk: Json = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError(Reason.STREAM_INCONSISTENT, f"an event is not JSON: {data[:60]!r}") from None
    return chunk


@dataclass(slots=True)
class _Stream:
    """A stream being read; the only mutable value here, and it does not leave this module."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: Ids | None = None
    usage: Usage | None = None
    done: bool = False
    chunks: int = 0

    def add(self, chunk: dict[str, Json]) -> None:
        _raise_error(chunk)
        self.chunks += 1
        for key in ("id", "provider", "model"):
            self._set_once(key, _text(chunk, key))
        self.usage = _usage(chunk.get("usage")) or self.usage
        self.prompt_ids = _ids(chunk.get("prompt_token_ids"), "prompt_token_ids") or self.prompt_ids
        choices = _list(chunk, "choices")
        if len(choices) > 1:
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"a chunk has {len(choices)} choices")
        for choice in choices:
            self._add_choice(_object(choice, "choice"))

    def _set_once(self, key: str, value: str | None) -> None:
        if value and self.once.setdefault(key, value) != value:
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"{key} changes from {self.once[key]} to {value}", field=key)

    def _add_choice(self, choice: dict[str, Json]) -> None:
        _raise_error(choice)
        if choice.get("index") not in (0, None):
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"a chunk is of choice {choice['index']}")
        if "message" in choice:
            raise RefusedError(Reason.STREAM_INCONSISTENT, "a chunk carries a whole message beside its deltas")
        finished = "finish_reason" in self.once
        for key in ("finish_reason", "native_finish_reason"):
            self._set_once(key, _text(choice, key))
        self.token_ids.extend(_ids(choice.get("token_ids"), "token_ids") or ())
        self.logprobs.extend(_logprobs(choice.get("logprobs")) or ())
        delta = _object(choice.get("delta") or {}, "delta")
        _refuse_unread(delta)
        self._add_delta(delta, finished=finished)

    def _add_delta(self, delta: dict[str, Json], *, finished: bool) -> None:
        reasoning, content = _reasoning(delta), _text(delta, "content")
        if finished and (reasoning or content):
            self._refuse_late(reasoning or content or "")
        self._add_text("reasoning", self.reasoning, reasoning)
        self._add_text("content", self.content, content)
        for position, call in enumerate(_list(delta, "tool_calls")):
            self._add_call(_object(call, "tool call"), position)

    def _refuse_late(self, text: str) -> None:
        if text in {"".join(self.content), "".join(self.reasoning)}:
            raise RefusedError(Reason.STREAM_INCONSISTENT, "the finish chunk repeats the whole text")

    def _add_text(self, name: Literal["reasoning", "content"], parts: list[str], text: str | None) -> None:
        if text:
            parts.append(text)
            self.deltas.append(Delta(name, text))

    def _add_call(self, call: dict[str, Json], position: int) -> None:
        index = call.get("index", position)
        if not isinstance(index, int):
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"a tool call's index is {index!r}", field="tool_calls")
        known = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = _object(call.get("function") or {}, "function")
        for key, value in (("id", _text(call, "id")), ("name", _text(function, "name"))):
            if value and known[key] not in ("", value):
                raise RefusedError(Reason.STREAM_INCONSISTENT, f"call {index} has two {key}s: {known[key]}, {value}")
            known[key] = value or known[key]
        arguments = _text(function, "arguments") or ""
        known["arguments"] += arguments
        # Also without text: where a call stands among the other fields is part of what was sent.
        self.deltas.append(Delta("tool_calls", arguments))

    def completion(self) -> Completion:
        if not self.done or "finish_reason" not in self.once:
            seen = "no [DONE]" if not self.done else "no finish_reason"
            raise RefusedError(Reason.STREAM_CUT, f"{seen} after {self.chunks} chunks")
        return Completion(
            reasoning="".join(self.reasoning) if self.reasoning else None,
            content="".join(self.content) if self.content else None,
            tool_calls=tuple(ToolCall(c["id"], c["name"], c["arguments"]) for _, c in sorted(self.calls.items())),
            finish_reason=self.once.get("finish_reason"),
            native_finish_reason=self.once.get("native_finish_reason"),
            usage=self.usage,
            provider=self.once.get("provider"),
            model=self.once.get("model"),
            generation_id=self.once.get("id"),
            logprobs=tuple(self.logprobs) or None,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids) or None,
            deltas=tuple(self.deltas),
        )


def _malformed(detail: str) -> RefusedError:
    return RefusedError(Reason.MALFORMED_INPUT, detail)


def _kind(value: Json) -> str:
    return "null" if value is None else type(value).__name__


def _raise_error(holder: JsonObject) -> None:
    error = holder.get("error")
    if error in (None, {}, ""):
        return
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    raise RefusedError(Reason.UPSTREAM_ERROR, f"{code}: {message}"[:300], field="error")


def _object(value: Json, what: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise _malformed(f"{what} is {_kind(value)}, not an object")
    return value


def _list(holder: JsonObject, key: str) -> list[Json]:
    value = holder.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _malformed(f"{key} is {_kind(value)}, not a list")
    return value


def _text(holder: JsonObject, key: str) -> str | None:
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise _malformed(f"{key} is {_kind(value)}, not text")
    return value


def _reasoning(message: JsonObject) -> str | None:
    """`reasoning` (OpenRouter) or `reasoning_content` (vLLM, SGLang); both and different is refused."""
    first, second = _text(message, "reasoning"), _text(message, "reasoning_content")
    told = first or second or first if first is not None else second
    others = [text for text in (first, second, _detailed(message)) if text]
    if any(text != told for text in others):
        raise RefusedError(Reason.STREAM_INCONSISTENT, "the reasoning came twice and differs", field="reasoning")
    return told


def _detailed(message: JsonObject) -> str | None:
    """The text of `reasoning_details`, which repeats `reasoning`; None where it is of another kind or absent."""
    details = message.get("reasoning_details")
    if not isinstance(details, list) or not message.get("reasoning"):
        return None
    texts = [item.get("text") for item in details if isinstance(item, dict) and item.get("type") == "reasoning.text"]
    return "".join(text for text in texts if isinstance(text, str)) or None


def _refuse_unread(message: JsonObject) -> None:
    """Parts of an answer that stand in no field that is read here would be lost without a word."""
    if message.get("refusal"):
        raise RefusedError(Reason.UPSTREAM_ERROR, f"refusal: {str(message['refusal'])[:120]}", field="refusal")
    if message.get("function_call"):
        raise RefusedError(Reason.CALLS_LOST, "a function_call of the old kind", field="function_call")


def _tool_call(call: Json) -> ToolCall:
    holder = _object(call, "tool call")
    function = _object(holder.get("function"), "function")
    return ToolCall(_text(holder, "id") or "", _text(function, "name") or "", _text(function, "arguments") or "")


def _usage(value: Json) -> Usage | None:
    if not isinstance(value, dict):
        return None
    if not value:
        return None
    return Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        cost=_number(value.get("cost")),
    )


def _number(value: Json) -> float | None:
    """A finite number; None for anything else, a whole number too large for a float among it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ids(value: Json, what: str) -> Ids | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _malformed(f"{what} is {_kind(value)}, not a list")
    ids: list[int] = []
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool):
            raise _malformed(f"{what} holds {_kind(item)}, not an id")
        ids.append(item)
    return tuple(ids)


def _logprobs(value: Json) -> tuple[TokenLogprob, ...] | None:
    """`logprobs.content`, in full; None for what providers send unasked (a bare number, an empty list)."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not content:
        return None
    return tuple(_token_logprob(_object(entry, "logprobs entry")) for entry in content)


def _token_logprob(entry: JsonObject) -> TokenLogprob:
    raw = entry.get("bytes")
    data: bytes | None = None
    if isinstance(raw, list):
        values = [byte for byte in raw if isinstance(byte, int) and 0 <= byte <= 255]  # noqa: PLR2004 — a byte
        data = bytes(values) if len(values) == len(raw) else None
    return TokenLogprob(_text(entry, "token") or "", data, _number(entry.get("logprob")))
