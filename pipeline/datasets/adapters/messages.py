"""OpenAI messages of your own, taken as they are.

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
are, and a role other than `system`, `developer`, `user`, `assistant` and `tool` rejects the row; preparation ends a
conversation at its last open question, and drops the recorded answer after it."""


def adapt(raw: Raw) -> Prompt:
    """Return the row's own messages. Raises RejectedError.

    A key that is null is the key left out, as Parquet writes it.
    """
    row, own, tools = raw.value, raw.value.get("id"), raw.value.get("tools")
    if isinstance(tools, str):
        tools = parsed(tools, "tools") if tools.strip() else []
    if not tools and (functions := row.get("functions")):
        tools = [{"type": "function", "function": dict(one)} for one in objects(functions, "functions")]
    messages = row.get("messages")
    if isinstance(messages, list):
        messages = [
            {key: value for key, value in message.items() if value is not None or key == "content"}
            if isinstance(message, dict)
            else message
            for message in messages
        ]
    line: dict[str, Json] = {
        "id": str(own) if isinstance(own, int) else own or identity(NAME, None, row.get("messages"), row.get("tools")),
        "messages": messages,
        "tools": tools,
        "thinking": row.get("thinking"),
        "dataset": row.get("dataset") or NAME,
    }
    try:
        return prompt_of(line)
    except RefusedError as error:
        unknown = error.refusal.detail.startswith("unknown role")
        raise RejectedError(Reject.UNKNOWN_ROLE if unknown else Reject.WRONG_SHAPE, error.refusal.detail) from None


def as_it_is(prompt: Prompt) -> Prompt:
    """Return all of the conversation."""
    return prompt
