"""What servers' parsers show of other families' tool calls.

Guarantees: as lossy as they are. Ids are invented, JSON is written anew, the types of GLM's arguments are guessed, and
text between and after the calls is dropped. Kimi's calls are parsed in `view`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count

from pipeline.records import ToolCall

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_SECTION = "<｜tool▁calls▁begin｜>"
_WIDE_CALL = re.compile(r"<｜tool▁call▁begin｜>([^<\n]+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_TAGGED = re.compile(r"<(?:｜DSML｜)?function_calls>(.*?)</(?:｜DSML｜)?function_calls>", re.DOTALL)
_INVOKE = re.compile(r'<(?:｜DSML｜)?invoke name="([^"\n]+)">(.*?)</(?:｜DSML｜)?invoke>', re.DOTALL)
_PARAMETER = re.compile(
    r'<(?:｜DSML｜)?parameter name="([^"\n]+)" string="(true|false)">(.*?)</(?:｜DSML｜)?parameter>', re.DOTALL
)
_FUNCTION = re.compile(r"<function=([^>]+)>(.*?)</function>", re.DOTALL)
_NAMED = re.compile(r"<parameter=([^>]+)>(.*?)</parameter>", re.DOTALL)
_FENCED = re.compile(r"([^\n]+)\n```json\n(.*)\n```", re.DOTALL)
_ARGUMENT = re.compile(
    r"<arg_key>((?:(?!</arg_key>).)*)</arg_key>\s*<arg_value>((?:(?!</arg_value>).)*)</arg_value>", re.DOTALL
)


def tagged_calls(content: str, family: str) -> tuple[tuple[ToolCall, ...], str]:
    """Return the calls in a text, and what precedes them.

    No calls where one does not parse. Parsers keep DeepSeek-V3.2's special token, which a shown text may lack.
    """
    try:
        calls = tuple(calls_in(content, family))
    except ValueError:
        calls = ()
    begun = _TAGGED.search(content)
    before = content.partition("<tool_call>" if "<tool_call>" in content else _SECTION)[0]
    before = content[: begun.start()] if begun else before
    return calls, before if calls else content


def calls_in(content: str, family: str) -> Iterator[ToolCall]:
    """Yield the calls as a family writes them.

    Raises ValueError where one does not parse.
    """
    index = count()
    for header, text in _WIDE_CALL.findall(content.partition(_SECTION)[2]):
        name, arguments = fenced_call(text) if family == "deepseek-r1" else (header, text)
        yield ToolCall(f"call_{next(index):08x}", name, arguments)
    section = _TAGGED.search(content)
    for name, said in _INVOKE.findall(section[1] if section else ""):
        given = {
            key: text if is_text == "true" else json.loads(text) for key, is_text, text in _PARAMETER.findall(said)
        }
        yield ToolCall(f"call_{next(index):08x}", name, json.dumps(given, ensure_ascii=False))
    read = json_call if family == "qwen3" else function_call if family.startswith("qwen3.5") else argument_call
    for text in _CALL.findall(content):
        name, arguments = read(text)
        yield ToolCall(f"call_{next(index):08x}", name, json.dumps(arguments, ensure_ascii=False))


def fenced_call(text: str) -> tuple[str, str]:
    """Return name and arguments of a call in R1's form."""
    found = _FENCED.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found[1], found[2]


def json_call(text: str) -> tuple[str, object]:
    """Return name and arguments of a call in Qwen3's form."""
    call = json.loads(text)
    name = call.get("name") if isinstance(call, dict) else None
    if not name or not isinstance(name, str):
        raise ValueError(text)
    return name, call.get("arguments", {})


def function_call(text: str) -> tuple[str, object]:
    """Return name and arguments of a call in Qwen3.5's form."""
    found = _FUNCTION.search(text)
    if found is None:
        raise ValueError(text)
    return found[1], {key: _guessed(value.strip("\n")) for key, value in _NAMED.findall(found[2])}


def argument_call(text: str) -> tuple[str, object]:
    """Return name and arguments of a call in GLM's form."""
    name = text.partition("<arg_key>")[0].strip()
    if not name:
        raise ValueError(text)
    return name, {key: _guessed(value) for key, value in _ARGUMENT.findall(text)}


def _guessed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
