"""What servers' parsers show of other families' tool calls.

Guarantees: as lossy as they are. Ids are invented, JSON is written anew, the types of GLM's arguments are guessed, and
text between and after the calls is dropped. Kimi's calls are parsed in `view`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pipeline.records import ToolCall

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_SECTION = "<｜tool▁calls▁begin｜>"
_WIDE_CALL = re.compile(r"<｜tool▁call▁begin｜>([^<\n]+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_TAGGED = re.compile(r"<(?:｜DSML｜)?function_calls>(.*?)</(?:｜DSML｜)?function_calls>", re.DOTALL)
_INVOKE = re.compile(r'<(?:｜DSML｜)?invoke name="([^"\n]+)">(.*?)</(?:｜DSML｜)?invoke>', re.DOTALL)
_PARAMETER = re.compile(
    r'<(?:｜DSML｜)?parameter name="([^"\n]+)" string="(true|false)">(.*?)</(?:｜DSML｜)?parameter>', re.DOTALL
)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def tagged_calls(content: str) -> tuple[tuple[ToolCall, ...], str]:
    """Return the calls in a text, and what precedes them.

    No calls where one does not parse. Parsers keep DeepSeek-V3.2's special token, which a shown text may lack.
    """
    try:
        calls = tuple(calls_in(content))
    except ValueError:
        calls = ()
    begun = _TAGGED.search(content)
    before = content.partition("<tool_call>" if "<tool_call>" in content else _SECTION)[0]
    before = content[: begun.start()] if begun else before
    return calls, before if calls else content


def calls_in(content: str) -> Iterator[ToolCall]:
    """Yield the calls as each family writes them.

    Raises ValueError where one does not parse.
    """
    for index, match in enumerate(_WIDE_CALL.finditer(content.partition(_SECTION)[2])):
        yield ToolCall(f"call_{index:08x}", match[1], match[2])
    section = _TAGGED.search(content)
    for index, match in enumerate(_INVOKE.finditer(section[1] if section else "")):
        parameters = _PARAMETER.findall(match[2])
        given = {name: text if is_text == "true" else json.loads(text) for name, is_text, text in parameters}
        yield ToolCall(f"call_{index:08x}", match[1], json.dumps(given, ensure_ascii=False))
    for index, match in enumerate(_CALL.finditer(content)):
        name, arguments = json_call(match[1]) if match[1].lstrip().startswith("{") else argument_call(match[1])
        yield ToolCall(f"call_{index:08x}", name, json.dumps(arguments, ensure_ascii=False))


def json_call(text: str) -> tuple[str, object]:
    """Return name and arguments of a call in Qwen's form."""
    call = json.loads(text)
    name = call.get("name") if isinstance(call, dict) else None
    if not name or not isinstance(name, str):
        raise ValueError(text)
    return name, call.get("arguments", {})


def argument_call(text: str) -> tuple[str, object]:
    """Return name and arguments of a call in GLM's form."""
    name = text.partition("<arg_key>")[0].strip()
    if not name:
        raise ValueError(text)
    arguments: dict[str, object] = {}
    for key, value in _ARGUMENT.findall(text):
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return name, arguments
