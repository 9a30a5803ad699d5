"""Whether parsed tool calls of Kimi's kind say how the model wrote them.

Guarantees: nothing is accepted here. Refused are ids that are not the model's own, and arguments that were cut. That a
route keeps ids and arguments to the letter is its fingerprint's to prove.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pipeline.records import Reason, RefusedError, ToolCall


def require_own_words(calls: Sequence[ToolCall]) -> None:
    """Ids as the model writes them, and arguments that are whole."""
    for call in calls:
        _require_matching_name(call.id, call.name)
        _require_whole_arguments(call.arguments)


def _require_matching_name(identity: str, name: str) -> None:
    if re.fullmatch(r"functions\." + re.escape(name) + r":\d+", identity) is None:
        message = f"id {identity!r} is not functions.{name}:INDEX"
        raise RefusedError(Reason.STRUCTURED_CALLS, message, field="tool_calls")


def _require_whole_arguments(text: str) -> None:
    """Arguments that are no JSON object were cut: the finish reason `tool_calls` hides a cut on some routes."""
    try:
        whole = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise RefusedError(
            Reason.FINISH_CONTRADICTS, f"arguments {text[-40:]!r} are no whole object", field="tool_calls"
        )
