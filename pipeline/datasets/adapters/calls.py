"""Functions, calls and results of a recorded conversation in the OpenAI schema.

Guarantees: a call has a result right after it and each result answers the call before it; arguments are a JSON object,
written as chat templates write it, so that every engine prints the same of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from pipeline.datasets.rows import Reject, RejectedError
from pipeline.records import Json, JsonObject


def declared(functions: Iterable[JsonObject]) -> list[JsonObject]:
    """Functions as `tools`; the same one twice is one. Raises RejectedError(UNREADABLE_TOOLS, TOOL_TWICE)."""
    known: dict[str, JsonObject] = {}
    for function in functions:
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RejectedError(Reject.UNREADABLE_TOOLS, "a function has no name")
        if known.setdefault(name, function) != function:
            raise RejectedError(Reject.TOOL_TWICE, f"{name!r} is declared twice, each time another way")
    return [{"type": "function", "function": dict(function)} for function in known.values()]


def call_turn(text: str, name: str, arguments: Json, number: int, known: AbstractSet[str]) -> JsonObject | None:
    """An assistant's turn with one call; None where the function is not declared or the arguments are no object.

    The call's id has the form in which Kimi's models write theirs; other families take any.
    """
    if name not in known or not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    call: Json = {
        "id": f"functions.{name}:{number}",
        "type": "function",
        "function": {"name": name, "arguments": written},
    }
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def result_turn(text: str) -> JsonObject:
    """A result; `without_loose_ends` says of which call."""
    return {"role": "tool", "content": text}


def without_loose_ends(turns: Sequence[JsonObject]) -> list[JsonObject]:
    """The turns before the first call without a result, or result without a call; results named after their calls."""
    kept: list[JsonObject] = []
    for position, turn in enumerate(turns):
        after = turns[position + 1]["role"] if position + 1 < len(turns) else None
        if turn["role"] == "tool":
            call = _call_before(kept)
            if call is None:
                break
            kept.append({"role": "tool", "tool_call_id": call, "content": turn["content"]})
        elif turn.get("tool_calls") and after not in ("tool", None):
            break
        else:
            kept.append(turn)
    return kept


def _call_before(turns: Sequence[JsonObject]) -> str | None:
    calls = turns[-1].get("tool_calls") if turns else None
    call = calls[0] if isinstance(calls, list) and calls else None
    return str(call["id"]) if isinstance(call, dict) else None
