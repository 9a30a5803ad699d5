"""Read the turns of a row, each text as published.

Guarantees: texts are the row's own objects, never stripped or replaced; only the names of roles and keys become those
of OpenAI's schema. Raises KeyError, TypeError, ValueError for a row in another schema than published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipeline.datasets.adapters import glaive, sweagent
from pipeline.records import JsonObject

_CALL = re.compile(r'\{\s*"name":\s*"([^"\\]+)",\s*"arguments":\s*(\{.*\}|\'\{.*\}\')\s*\}\s*', re.DOTALL)


def json_of(value: Any) -> Any:  # noqa: ANN401 — any JSON
    """Return a text's JSON, or the value itself."""
    return json.loads(value) if isinstance(value, str) else value


def asked(row: Mapping[str, Any], *, column: str) -> list[JsonObject]:
    """Return the one question of a row."""
    return [{"role": "user", "content": row[column]}]


def told(row: Mapping[str, Any], *, roles: Mapping[str, str]) -> list[JsonObject]:
    """Return turns with `role` and `content`."""
    return [{"role": roles.get(turn["role"]), "content": turn["content"]} for turn in row["messages"]]


def spoken(row: Mapping[str, Any], *, column: str, roles: Mapping[str, str]) -> list[JsonObject]:
    """Return turns with `from` and `value`."""
    return [{"role": roles.get(turn["from"]), "content": turn["value"]} for turn in row[column]]


def as_spoken(row: Mapping[str, Any]) -> list[tuple[object, object]]:
    """Return `from` and `value` of each turn."""
    return [(turn.get("from"), turn.get("value")) for turn in row["conversations"]]


def own_turns(row: Mapping[str, Any]) -> list[JsonObject]:
    """Return OpenAI messages; a null key is one left out."""
    return [
        {key: value for key, value in turn.items() if value is not None or key == "content"} for turn in row["messages"]
    ]


def own_tools(row: Mapping[str, Any]) -> list[JsonObject]:
    """Return the tools of a row of OpenAI messages."""
    tools = row.get("tools")
    found = json_of(tools) if not isinstance(tools, str) or tools.strip() else []
    return found or [{"type": "function", "function": one} for one in row.get("functions") or []]


def nebius_turns(row: Mapping[str, Any]) -> list[JsonObject]:
    """Return the turns of a nebius trajectory."""
    texts = {"system": "system_prompt"}
    return [
        {"role": sweagent.NEBIUS_ROLES.get(turn["role"]), "content": turn.get(texts.get(turn["role"], "text")) or ""}
        for turn in row["trajectory"]
    ]


def smith_turns(row: Mapping[str, Any]) -> list[JsonObject]:
    """Return the turns of a SWE-smith trajectory."""
    return [_smith_turn(turn) for turn in json_of(row["messages"])]


def _smith_turn(turn: Mapping[str, Any]) -> JsonObject:
    content = turn.get("content")
    if isinstance(content, list):
        (part,) = content
        content = part["text"]
    found: dict[str, Any] = {"role": turn["role"], "content": content}
    if turn["role"] == "tool":
        (found["tool_call_id"],) = turn.get("tool_call_ids") or [turn["tool_call_id"]]
    elif turn.get("tool_calls"):
        keys = ("name", "arguments")
        found["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {key: call["function"][key] for key in keys}}
            for call in turn["tool_calls"]
        ]
        return found
    return {**found, "content": content or ""}


def glaive_turns(row: Mapping[str, Any]) -> list[JsonObject]:
    """Return LLaMA-Factory's turns of Glaive.

    The id of a call is that of its place. A call that cannot be read has no calls.
    """
    found: list[JsonObject] = []
    for number, turn in enumerate(row["conversations"]):
        role, text = glaive.ROLES.get(turn["from"]), turn["value"]
        if role == "call" and (call := _CALL.fullmatch(text)):
            name, arguments = call[1], call[2].strip("'")
            made = {"name": name, "arguments": arguments}
            calls: Any = [{"id": f"functions.{name}:{number}", "type": "function", "function": made}]
            found.append({"role": "assistant", "content": "", "tool_calls": calls})
        elif role == "tool":
            calls = (found[-1].get("tool_calls") if found else None) or [{"id": None}]
            found.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": text})
        else:
            found.append({"role": role, "content": text})
    return found
