"""OpenAI messages as JSON lines: what somebody else prepared, taken as it is.

Guarantees: messages and tools are those of the row, unaltered; what is not the schema is rejected by name.
"""

from __future__ import annotations

from pipeline.base.prompts import prompt_of
from pipeline.datasets.conversation import identity
from pipeline.datasets.rows import Raw, Reject, RejectedError, objects, parsed
from pipeline.records import Json, Prompt, RefusedError

NAME = "messages"
COLUMNS, MORE = frozenset({"messages"}), frozenset({"id", "tools", "functions", "thinking", "dataset"})
PAGE = """JSON lines, JSON or Parquet of your own, one conversation a row.

Schema: `messages` (OpenAI's), and where there are any `id`, `tools` (a list, or a list as JSON text; `functions` is its
older name), `thinking` (a boolean) and `dataset` (a name). Other columns are passed over. Messages are taken as they
are; preparation ends a conversation at its last open question, and drops the recorded answer after it."""


def adapt(raw: Raw) -> Prompt:
    """The row's own messages. Raises RejectedError."""
    row, own = raw.value, raw.value.get("id")
    line: dict[str, Json] = {
        "id": str(own) if isinstance(own, int) else own or identity(NAME, None, row.get("messages"), row.get("tools")),
        "messages": _messages(row.get("messages")),
        "tools": _tools(row.get("tools"), row.get("functions")),
        "thinking": row.get("thinking"),
        "dataset": row.get("dataset") or NAME,
    }
    try:
        return prompt_of(line)
    except RefusedError as error:
        raise RejectedError(Reject.WRONG_SHAPE, error.refusal.detail) from None


def _messages(messages: Json) -> Json:
    """The messages; null for a key is the key left out, as Parquet writes it."""
    if not isinstance(messages, list):
        return messages
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"}
        if isinstance(message, dict)
        else message
        for message in messages
    ]


def _tools(tools: Json, functions: Json) -> Json:
    if isinstance(tools, str):
        tools = parsed(tools, "tools") if tools.strip() else []
    if not tools and functions:
        return [{"type": "function", "function": dict(one)} for one in objects(functions, "functions")]
    return tools
