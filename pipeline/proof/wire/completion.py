"""What came over the wire, as a Completion: a chat.completion body, or the events of a stream.

Guarantees: text is what the JSON strings say and otherwise untouched. Refuses errors in any of their places (status 200
included) and answers without a choice; `pipeline.proof.wire.stream` says what it refuses of a stream.
Format: OpenAI's chat.completion with OpenRouter's additions, and the ids of `pipeline.proof.wire.token_ids`.
"""

from __future__ import annotations

import json

from pipeline.base.quoting import quoted
from pipeline.proof.wire.fields import (
    as_list,
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
from pipeline.proof.wire.sse import sse_data
from pipeline.proof.wire.stream import completion_of_sse
from pipeline.proof.wire.token_ids import ReturnedIds
from pipeline.records import Completion, Json, Reason, RefusedError

__all__ = ["completion_of_body", "completion_of_json", "completion_of_sse", "sse_data"]


def completion_of_body(body: Json) -> Completion:
    """A Completion of a chat.completion body; RefusedError for errors, no choice, or another shape."""
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
        raise RefusedError(Reason.EMPTY_ANSWER, f"choices is {quoted(json.dumps(choices), 60)}", field="choices")
    if len(choices) > 1:
        raise malformed(f"{len(choices)} choices; one is asked for", "choices")
    return choices[0]


def completion_of_json(raw: bytes) -> Completion:
    """A Completion of a body as sent; keep-alive white space before the JSON is allowed, as JSON allows it."""
    try:
        body: Json = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise malformed(f"the response is not JSON: {error}") from None
    return completion_of_body(body)
