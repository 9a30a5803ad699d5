"""Single fields of a response, read by kind.

Guarantees: text is what the JSON string says, untouched; a field of another kind is a Refusal and never a guess. An
absent field and a null are the same.
"""

from __future__ import annotations

import math

from pipeline.base.redaction import redact
from pipeline.records import Json, JsonObject, Reason, RefusedError, TokenLogprob, ToolCall, Usage

BYTE = 255


def malformed(detail: str, where: str = "response") -> RefusedError:
    """Return the refusal of a field of the wrong kind."""
    return RefusedError(Reason.MALFORMED_INPUT, detail, field=where)


def kind(value: Json) -> str:
    """Return a value's kind, for a sentence."""
    return "null" if value is None else type(value).__name__


def require_no_error(holder: JsonObject) -> None:
    """Refuse a holder that carries an error.

    RefusedError(UPSTREAM_ERROR). Its text is never taken as an answer.
    """
    error = holder.get("error")
    if error in (None, {}, ""):
        return
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    raise RefusedError(Reason.UPSTREAM_ERROR, redact(f"{code}: {message}", 300), field="error")


def as_object(value: Json, what: str) -> dict[str, Json]:
    """Return the value, which must be an object."""
    if not isinstance(value, dict):
        raise malformed(f"{what} is {kind(value)}, not an object", what)
    return value


def as_list(holder: JsonObject, key: str) -> list[Json]:
    """Return the list under `key`; empty where there is none."""
    value = holder.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise malformed(f"{key} is {kind(value)}, not a list", key)
    return value


def as_text(holder: JsonObject, key: str) -> str | None:
    """Return the text under `key`, None where there is none."""
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise malformed(f"{key} is {kind(value)}, not text", key)
    return value


def stopped_by(choice: JsonObject) -> str | int | None:
    """Return what ended the answer.

    A stop text or a token's id, as `stop_reason` (vLLM) or `matched_stop` (SGLang).
    """
    found: str | int | None = None
    for key in ("stop_reason", "matched_stop"):
        value = choice.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise malformed(f"{key} is {kind(value)}, neither text nor an id", key)
        if found is not None and found != value:
            raise RefusedError(Reason.FINISH_CONTRADICTS, "stop_reason and matched_stop differ", field=key)
        found = value
    return found


def reasoning_of(message: JsonObject) -> str | None:
    """Return the reasoning under any of its three names.

    Two that differ are refused. `reasoning` is OpenRouter's and newer vLLM's, `reasoning_content` is SGLang's and older
    vLLM's, and OpenRouter sends the same text again as `reasoning_details` of the type `reasoning.text`.
    """
    found = as_text(message, "reasoning")
    for name, other in (
        ("reasoning_content", as_text(message, "reasoning_content")),
        ("reasoning_details", _details(message.get("reasoning_details"))),
    ):
        if found and other and found != other:
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"reasoning and {name} differ", field="reasoning")
        found = found or other or found
    return found


def _details(details: Json) -> str | None:
    """Return the text of `reasoning_details`.

    A summary is no reasoning, and what is encrypted says nothing.
    """
    if not isinstance(details, list) or not details:
        return None
    texts = [
        detail.get("text") for detail in details if isinstance(detail, dict) and detail.get("type") == "reasoning.text"
    ]
    return "".join([text for text in texts if isinstance(text, str)]) or None


def require_all_read(message: JsonObject) -> None:
    """Refuse parts of an answer that no field here reads.

    They would be lost silently.
    """
    if message.get("refusal"):
        raise RefusedError(Reason.UPSTREAM_ERROR, f"refusal: {redact(str(message['refusal']), 120)}", field="refusal")
    if message.get("function_call"):
        raise RefusedError(Reason.CALLS_LOST, "a function_call of the old kind", field="function_call")


def tool_call_of(call: Json) -> ToolCall:
    """Return one parsed call, arguments as they came."""
    holder = as_object(call, "tool call")
    function = as_object(holder.get("function"), "function")
    return ToolCall(as_text(holder, "id") or "", as_text(function, "name") or "", as_text(function, "arguments") or "")


def usage_of(value: Json) -> Usage | None:
    """Return counts as given.

    One that is absent or no count stays unknown and is never 0.
    """
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
    """Return a finite number, otherwise None.

    A whole number too large for a float is None too.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def logprobs_of(value: Json) -> tuple[TokenLogprob, ...] | None:
    """Return `logprobs.content`, in full.

    None for what providers send unrequested (a bare number, an empty list).
    """
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not content:
        return None
    return tuple(_token_logprob(as_object(entry, "logprobs entry")) for entry in content)


def _token_logprob(entry: JsonObject) -> TokenLogprob:
    raw = entry.get("bytes")
    data: bytes | None = None
    if isinstance(raw, list):
        values = [byte for byte in raw if type(byte) is int and 0 <= byte <= BYTE]
        data = bytes(values) if len(values) == len(raw) else None
    return TokenLogprob(as_text(entry, "token") or "", data, _number(entry.get("logprob")))
