"""What distinguishes the releases of Kimi's layout, as values.

Guarantees: a release differs from its neighbours in what its `Release` names and in nothing else. `preserve_thinking`
is a property of how a whole job asks, so it is a release of its own with its own format name, and no field of a prompt.
Sources: the chat templates of K2 (July 2025), K2-Thinking, K2.5 and K2.6. Copies of K2-0905's agree on turns of text
alone, so its tools, calls and their results are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pipeline.formats.format import Opener
from pipeline.formats.kimi.typescript import SchemaError, declare_functions, sort_keys
from pipeline.records import Json, JsonObject, Reason, RefusedError


class MessageStyle(StrEnum):
    """What a template prints of a message.

    FULL: thinking, tool calls, names and `## Return of`. PLAIN: role and content alone. TEXT: names and content, and
    nothing that has to do with tools.
    """

    FULL = "full"
    PLAIN = "plain"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Release:
    """One release's template and way of thinking.

    `opener` is of a prompt that asks for thinking. `default_system` is said where the first message is no system
    message. `preserves_thinking` keeps the reasoning of all earlier turns.
    """

    opener: Opener
    turns: MessageStyle
    declare: Callable[[Sequence[JsonObject]], str]
    default_system: str | None = None
    preserves_thinking: bool = False


def declare_tools(tools: Sequence[JsonObject]) -> str:
    """Return the text that declares `tools` (OpenAI schema).

    TypeScript, or compact JSON where a schema has no such form.
    """
    ordered = sorted_tools(tools)
    functions = [function for tool in ordered if isinstance(function := tool["function"], dict)]
    try:
        return declare_functions(functions)
    except SchemaError:
        return declare_compactly(tools)


def declare_compactly(tools: Sequence[JsonObject]) -> str:
    """Return JSON without spaces, every object's keys sorted."""
    return json.dumps(sorted_tools(tools), ensure_ascii=False, separators=(",", ":"))


def declare_as_json(tools: Sequence[JsonObject]) -> str:
    """Return the text that declares `tools` to K2 and K2-Thinking.

    JSON with spaces, every object's keys sorted.
    """
    return json.dumps(sorted_tools(tools), ensure_ascii=False)


def declare_nothing(tools: Sequence[JsonObject]) -> str:
    """Refuse: copies of the template declare tools differently."""
    message = f"how this release's template tells its {len(tools)} tools is not known for certain"
    raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field="tools")


def sorted_tools(tools: Sequence[JsonObject]) -> list[dict[str, Json]]:
    """Return the tools with every object's keys sorted.

    Kimi's tokenizer hands them so to its template.
    """
    found: list[dict[str, Json]] = []
    for position, tool in enumerate(tools):
        ordered = sort_keys(dict(tool))
        is_function = isinstance(ordered, dict) and ordered.get("type") == "function"
        if not isinstance(ordered, dict) or not is_function or not isinstance(ordered.get("function"), dict):
            message = f"tool {position} is not {{'type': 'function', 'function': {{…}}}}"
            raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field=f"tools[{position}]")
        found.append(ordered)
    return found


def as_templated(release: Release, template: str) -> Release:
    """Return the release with tools as its template writes them.

    Copies of the templates of K2 and K2-Thinking differ in nothing but the spaces of that JSON.
    """
    compact = release.declare is declare_as_json and "tojson(separators=" in template
    return replace(release, declare=declare_compactly) if compact else release


K2 = Release(Opener.NOBODY, MessageStyle.PLAIN, declare_as_json, "You are a helpful assistant")
_KIMI = "You are Kimi, an AI assistant created by Moonshot AI."
K2_0905 = Release(Opener.NOBODY, MessageStyle.TEXT, declare_nothing, _KIMI)
K2_THINKING = Release(Opener.MODEL, MessageStyle.FULL, declare_as_json, _KIMI)
K25 = Release(Opener.PROMPT, MessageStyle.FULL, declare_tools)
K26 = K25
"""Without `preserve_thinking`, K2.6 renders what K2.5 renders."""
K26_PRESERVE = replace(K26, preserves_thinking=True)
