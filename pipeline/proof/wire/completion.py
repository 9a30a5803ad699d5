"""A body or a stream, as a Completion.

Guarantees: text is what the JSON strings say and otherwise untouched. Of a stream it is what the deltas say, joined in
order; only halves of one surrogate pair that two neighbouring deltas share are one character, as they are wherever
JSON's strings are UTF-16. A fragment of a tool call belongs to the call that its index names; a new id under an index
in use begins another call, because servers exist that number every call 0.

Refuses errors in any of their places (status 200 included), answers without a choice, streams that were cut, chunks
that contradict each other, text that comes a second time, fragments that belong to no call, and a call that changes its
name.

Format: OpenAI's chat.completion and chat.completion.chunk with OpenRouter's additions, and the ids of
`pipeline.proof.wire.token_ids`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

import orjson

from pipeline.base.redaction import redact
from pipeline.proof.wire.fields import (
    as_list,
    as_object,
    as_text,
    kind,
    logprobs_of,
    malformed,
    reasoning_of,
    require_all_read,
    require_no_error,
    stopped_by,
    tool_call_of,
    usage_of,
)
from pipeline.proof.wire.sse import Events, Frames, TextField, events_of
from pipeline.proof.wire.token_ids import ReturnedIds
from pipeline.records import Completion, Delta, Json, Reason, RefusedError, TokenLogprob, ToolCall, Usage

_TOKEN_CHARS = 32
"""Few tokens are longer; a longer text is a batch, and does not come again."""


def completion_of_json(raw: bytes) -> Completion:
    """Return the Completion of a body as sent.

    Keep-alive white space before the JSON is allowed, as JSON allows it.
    """
    try:
        body: Json = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise malformed(f"the response is not JSON: {error}") from None
    return completion_of_body(body)


def completion_of_body(body: Json) -> Completion:
    """Return the Completion of a chat.completion body.

    RefusedError for errors, no choice, or another shape.
    """
    if not isinstance(body, dict):
        raise malformed(f"the response is {kind(body)}, not an object")
    require_no_error(body)
    choice = _only_choice(body.get("choices"))
    require_no_error(choice)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise malformed(f"message is {kind(message)}, not an object", "message")
    require_all_read(message)
    returned = ReturnedIds()
    returned.add_top(body)
    returned.add_choice(choice)
    return Completion(
        reasoning=reasoning_of(message),
        content=as_text(message, "content"),
        tool_calls=tuple(tool_call_of(call) for call in as_list(message, "tool_calls")),
        finish_reason=as_text(choice, "finish_reason"),
        native_finish_reason=as_text(choice, "native_finish_reason"),
        usage=usage_of(body.get("usage")),
        provider=as_text(body, "provider"),
        model=as_text(body, "model"),
        generation_id=as_text(body, "id"),
        logprobs=logprobs_of(choice.get("logprobs")),
        prompt_ids=returned.prompt_ids(),
        token_ids=returned.token_ids(),
        ids_from=returned.places,
        stopped_by=stopped_by(choice),
    )


def _only_choice(choices: Json) -> dict[str, Json]:
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise RefusedError(Reason.EMPTY_ANSWER, f"choices is {redact(json.dumps(choices), 60)}", field="choices")
    if len(choices) > 1:
        raise malformed(f"{len(choices)} choices; one is asked for", "choices")
    return choices[0]


# Streams


def completion_of_sse(raw: str) -> Completion:
    """Return the Completion of a stream's whole text.

    RefusedError(STREAM_CUT) unless it ran to its finish and `[DONE]`.
    """
    stream, events = _Stream(), events_of(raw)
    for data in events:
        if data == "[DONE]":  # a gateway may add its own behind its upstream's
            stream.done = True
        elif stream.done:
            raise _inconsistent(f"data after [DONE]: {redact(data, 60)}")
        else:
            stream.add_data(data)
            stream.follow(events)
    return stream.completion()


def _inconsistent(detail: str, where: str | None = None) -> RefusedError:
    return RefusedError(Reason.STREAM_INCONSISTENT, detail, field=where)


_KNOWN: Mapping[TextField, Callable[[str], Delta]] = {
    "reasoning": lru_cache(maxsize=1 << 15)(partial(Delta, "reasoning")),
    "content": lru_cache(maxsize=1 << 15)(partial(Delta, "content")),
}
"""The same value for the same text, which a token's mostly was before."""


def _chunk(data: str) -> dict[str, Json]:
    try:
        chunk: Json = orjson.loads(data)
    except orjson.JSONDecodeError:
        # Half a surrogate pair is JSON, though not UTF-8. What stays half is refused by its own name at a later stage.
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            raise _inconsistent(f"an event is not JSON: {redact(data, 60)!r}") from None
    if not isinstance(chunk, dict):
        raise _inconsistent(f"an event is {kind(chunk)}, not an object")
    return chunk


def _says_anything(choice: Json) -> bool:
    """Return whether a choice holds more than a role.

    Servers were seen to begin with a chunk of another id; a chunk that says nothing identifies nothing.
    """
    if not isinstance(choice, dict):
        return True
    delta = choice.get("delta")
    said = {**choice, **delta} if isinstance(delta, dict) else choice
    return any(value for key, value in said.items() if key not in ("index", "role", "delta"))


@dataclass(slots=True)
class _Call:
    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Calls:
    """Calls as they grow, in order of their beginning."""

    begun: list[_Call] = field(default_factory=list)

    def add(self, fragment: dict[str, Json], position: int) -> str | None:
        """Add one fragment and return its arguments.

        `position` is its place in its delta.
        """
        index = fragment.get("index")
        index = position if index is None else index
        if not isinstance(index, int) or isinstance(index, bool):
            raise _inconsistent(f"a tool call's index is {index!r}", "tool_calls")
        function = as_object({} if (given := fragment.get("function")) is None else given, "function")
        identity, name = as_text(fragment, "id"), as_text(function, "name")
        call = self._call(index, identity, name)
        call.id = call.id or identity or ""
        if name and call.name not in ("", name):
            raise _inconsistent(f"call {index} has two names: {call.name}, {name}", "tool_calls")
        call.name = call.name or name or ""
        if arguments := as_text(function, "arguments"):
            call.arguments.append(arguments)
        return arguments

    def _call(self, index: int, identity: str | None, name: str | None) -> _Call:
        """Return the call that a fragment continues, or begins."""
        known = next((call for call in reversed(self.begun) if call.index == index), None)
        if known is not None and (not identity or known.id in ("", identity)):
            return known
        if not identity and not name:
            raise _inconsistent(f"a fragment of call {index} came before its id and name", "tool_calls")
        self.begun.append(_Call(index))
        return self.begun[-1]

    def all(self) -> tuple[ToolCall, ...]:
        """Return the calls by index.

        Those of one index stand in the order in which they began.
        """
        ordered = sorted(self.begun, key=lambda call: call.index)
        return tuple(ToolCall(call.id, call.name, "".join(call.arguments)) for call in ordered)


@dataclass(slots=True)
class _Stream:
    """A stream being read; it does not leave this module.

    `held` is the first half of a surrogate pair at the end of the last delta, by field.
    """

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    once: dict[str, str] = field(default_factory=dict)
    stopped_by: str | int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    returned: ReturnedIds = field(default_factory=ReturnedIds)
    usage: Usage | None = None
    frames: Frames = field(default_factory=Frames)
    held: tuple[TextField, str] | None = None
    done: bool = False
    chunks: int = 0

    def add_data(self, data: str) -> None:
        """Add one event, read in full."""
        chunk, before = _chunk(data), len(self.deltas)
        self.add(chunk)
        if len(self.deltas) == before + 1:
            self.frames.learn(data, chunk, self.deltas[-1])

    def follow(self, events: Events) -> None:
        """Add the next events that differ only in text.

        They were read before in all but their text. Stops at the first that does more than add text.
        """
        if self.held or "finish_reason" in self.once:
            return
        runs, events.at = self.frames.run(events.raw, events.at)
        for name, texts in runs:
            (self.reasoning if name == "reasoning" else self.content).extend(texts)
            known = max(map(len, texts)) <= _TOKEN_CHARS
            self.deltas += map(_KNOWN[name], texts) if known else [Delta(name, text) for text in texts]
            self.chunks += len(texts)

    def add(self, chunk: dict[str, Json]) -> None:
        require_no_error(chunk)
        self.chunks += 1
        usage, choices = usage_of(chunk.get("usage")), as_list(chunk, "choices")
        says = usage is not None or any(map(_says_anything, choices))
        for key in ("id", "provider", "model"):
            self._set_once(key if says else f"empty {key}", as_text(chunk, key), may_change=not says)
        self._set_usage(usage)
        self.returned.add_top(chunk)
        if len(choices) > 1:
            raise _inconsistent(f"a chunk has {len(choices)} choices")
        for choice in choices:
            self._add_choice(as_object(choice, "choice"))

    def _set_once(self, key: str, value: str | None, *, may_change: bool = False) -> None:
        if value and self.once.setdefault(key, value) != value and not may_change:
            raise _inconsistent(f"{key} changes from {self.once[key]} to {value}", key)

    def _set_usage(self, usage: Usage | None) -> None:
        """Keep the last usage.

        Some servers send one with each chunk; none may count backwards.
        """
        before, now = (one.completion_tokens if one else None for one in (self.usage, usage))
        if before is not None and now is not None and now < before:
            raise _inconsistent(f"usage falls from {before} to {now} tokens", "usage")
        self.usage = usage or self.usage

    def _add_choice(self, choice: dict[str, Json]) -> None:
        require_no_error(choice)
        if choice.get("index") not in (0, None):
            raise _inconsistent(f"a chunk is of choice {choice['index']}")
        finished = "finish_reason" in self.once
        for key in ("finish_reason", "native_finish_reason"):
            self._set_once(key, as_text(choice, key))
        if (stop := stopped_by(choice)) is not None:
            if self.stopped_by not in (None, stop):
                raise _inconsistent(f"what stopped the answer changes from {self.stopped_by} to {stop}", "stop_reason")
            self.stopped_by = stop
        self.returned.add_choice(choice)
        self.logprobs.extend(logprobs_of(choice.get("logprobs")) or ())
        delta = choice.get("delta")
        self._add_delta(as_object({} if delta is None else delta, "delta"), finished=finished)
        if (message := choice.get("message")) is not None:
            self._require_said(as_object(message, "message"))

    def _add_delta(self, delta: dict[str, Json], *, finished: bool) -> None:
        require_all_read(delta)
        reasoning, content = reasoning_of(delta), as_text(delta, "content")
        if "finish_reason" in self.once:
            self._refuse_again(reasoning, content, before=0 if finished else 1)
        self._add_text("reasoning", self.reasoning, reasoning)
        self._add_text("content", self.content, content)
        for position, call in enumerate(as_list(delta, "tool_calls")):
            # Also without text: where a call stands among the other fields is part of what was sent.
            self.deltas.append(Delta("tool_calls", self.calls.add(as_object(call, "tool call"), position) or ""))

    def _refuse_again(self, reasoning: str | None, content: str | None, *, before: int) -> None:
        """Refuse a finish that repeats the whole text.

        Text may come with the finish or after it. One delta that came before may equal the last one; the count tells.
        """
        for text, parts in ((reasoning, self.reasoning), (content, self.content)):
            if text and len(parts) > before and text == "".join(parts):
                raise _inconsistent("the finish chunk repeats the whole text")

    def _require_said(self, message: dict[str, Json]) -> None:
        """Refuse a whole message that says other than the deltas.

        A field that is absent or empty says nothing: some servers leave the reasoning out.
        """
        said = (
            (reasoning_of(message), "".join(self.reasoning)),
            (as_text(message, "content"), "".join(self.content)),
            (tuple(tool_call_of(call) for call in as_list(message, "tool_calls")), self.calls.all()),
        )
        if any(whole and whole != streamed for whole, streamed in said):
            raise _inconsistent("a chunk carries a whole message that the deltas do not say")

    def _add_text(self, name: TextField, parts: list[str], text: str | None) -> None:
        if not text:
            return
        if self.held is not None:
            text = self._with_held(name, text)
        if "\ud800" <= text[-1] <= "\udbff":
            self.held, text = (name, text[-1]), text[:-1]
        if text:
            parts.append(text)
            self.deltas.append(Delta(name, text))

    def _with_held(self, name: str, text: str) -> str:
        """Return the text with the half held for it.

        One character if both halves are there; otherwise each stays half.
        """
        waiting, half = self.held or ("", "")
        if waiting == name and "\udc00" <= text[0] <= "\udfff":
            self.held = None
            return (half + text[0]).encode("utf-16", "surrogatepass").decode("utf-16") + text[1:]
        self._release()
        return text

    def _release(self) -> None:
        """Add a half that stayed alone as text.

        What encodes it refuses it by name.
        """
        if self.held is not None:
            name, half = self.held
            (self.reasoning if name == "reasoning" else self.content).append(half)
            self.deltas.append(Delta(name, half))
            self.held = None

    def _named(self, key: str) -> str | None:
        """Return what chunks with text name, else the others."""
        return self.once.get(key) or self.once.get(f"empty {key}")

    def completion(self) -> Completion:
        if not self.done or "finish_reason" not in self.once:
            seen = "no [DONE]" if not self.done else "no finish_reason"
            raise RefusedError(Reason.STREAM_CUT, f"{seen} after {self.chunks} chunks", field="sse")
        self._release()
        return Completion(
            reasoning="".join(self.reasoning) if self.reasoning else None,
            content="".join(self.content) if self.content else None,
            tool_calls=self.calls.all(),
            finish_reason=self.once.get("finish_reason"),
            native_finish_reason=self.once.get("native_finish_reason"),
            usage=self.usage,
            provider=self._named("provider"),
            model=self._named("model"),
            generation_id=self._named("id"),
            logprobs=tuple(self.logprobs) or None,
            prompt_ids=self.returned.prompt_ids(),
            token_ids=self.returned.token_ids(),
            ids_from=self.returned.places,
            deltas=tuple(self.deltas),
            stopped_by=self.stopped_by,
        )
