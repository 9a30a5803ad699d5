"""Find signs of tools in a conversation.

Tools are declared to the model, or called and answered in its history.

Guarantees: structure decides first (the tools themselves, roles, keys, parts). A marker in the text counts only in a
turn of the role that writes it in earnest. What a user quotes in fenced code or between backticks is left out: a
question about a tool call is no tool call. Markers and look-alikes are from the published sets; `tests/unit` has
examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from pipeline.records import Json, JsonObject


class Tool(StrEnum):
    """What a sign shows."""

    DECLARED = "tools_declared"
    TRANSCRIPT = "tool_transcript"


@dataclass(frozen=True, slots=True)
class ToolSign:
    """What was found, in words, and where (`messages[2].content`)."""

    kind: Tool
    what: str
    where: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A way in which texts declare or call tools.

    `needle` stands in every text that matches; most texts lack it, so it is looked for first.
    """

    what: str
    needle: str
    pattern: re.Pattern[str]

    def is_in(self, text: str) -> bool:
        return self.needle in text and self.pattern.search(text) is not None


def _marker(what: str, needle: str, pattern: str, flags: re.RegexFlag = re.NOFLAG) -> Marker:
    return Marker(what, needle, re.compile(pattern, flags))


RESULT_ROLES = frozenset(
    {
        *("tool", "function", "ipython", "observation", "function_response", "tool_response", "function_result"),
        *("tool_result", "tool_results", "function_results"),
    }
)
CALL_ROLES = frozenset({"function_call", "tool_call", "function_calls", "tool_calls"})
DECLARING_ROLES = frozenset({"tool_declare", "tools", "functions"})
STRUCTURAL = RESULT_ROLES | CALL_ROLES | DECLARING_ROLES
CALL_KEYS = ("tool_calls", "function_call", "tool_call_id", "tool_call", "function_calls", "tool_call_ids")
DECLARING_KEYS = ("tools", "functions")
"""Keys of a system message in which some templates find tools."""
EMPTY = ("[]", "{}", "null", "None")
"""Texts that stand for no value."""
CALL_PARTS = frozenset({"tool_use", "tool_result", "tool_call", "function_call", "function_call_output"})

_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_BESIDE = rf"""(?:["'](?:description|strict|type)["']\s*:\s*(?:{_QUOTED}|true|false|True|False)\s*,\s*)*"""
DEFINITION = _marker(
    "a function's definition in JSON",
    "name",
    rf"""["']name["']\s*:\s*{_QUOTED}\s*,\s*{_BESIDE}["'](?:parameters|input_schema|inputSchema)["']\s*:\s*"""
    r"""\{\s*["']type["']\s*:\s*["'](?:object|dict)["']""",
)
DECLARATIONS: Sequence[Marker] = (
    _marker(
        "Glaive's function list",
        "Use them if required -",
        r"with access to the following functions\. Use them if required -\s*\{",
    ),
    _marker("a <tools> section", "<tools>", r"<tools>\s*(?:[\[{]|<(?:function|tool|tool_description)\b)"),
    _marker("a <functions> section", "<functions>", r"<functions>\s*(?:\[\s*\{|\{|<function>)"),
    _marker("a <|tool|> section", "<|tool|>", r"<\|tool\|>\s*\["),
    _marker("a numbered function section", "BEGIN FUNCTION #", r"---- BEGIN FUNCTION #\d+: "),
    _marker("a COMMANDS section", "COMMANDS:", r"COMMANDS:\s*\n.*?^[ \t]*docstring:", re.DOTALL | re.MULTILINE),
    _marker("a namespace of functions", "namespace ", r"namespace (?:functions|browser) \{"),
    _marker(
        "tools of an ipython environment", "Environment: ipython", r"Environment: ipython[ \t]*\n[ \t]*Tools:[ \t]*\S"
    ),
    _marker("a list of actions", "one of [", r"Action: (?:the action to take, )?(?:should be )?one of \["),
    _marker(
        "a list of functions to invoke",
        "in JSON format that you can invoke",
        r"list of functions in JSON format that you can invoke[.:]?\s*\[",
    ),
    _marker(
        "a list of tools behind its lead-in",
        "ou have access to the following",
        r"[Yy]ou have access to the following (?:tools|functions):?[ \t]*\n\s*(?:#{2,4} |[-*]?\s*\{|\[\s*\{)",
    ),
    _marker("an [AVAILABLE_TOOLS] section", "[AVAILABLE_TOOLS]", r"\[AVAILABLE_TOOLS\]\s*\["),
    DEFINITION,
)
"""How system texts (and whole renderings in one text) declare tools."""

CALLS: Sequence[Marker] = (
    _marker("a <functioncall>", "<functioncall>", r"<functioncall>\s*\{"),
    _marker("a <tool_call>", "<tool_call>", r"<tool_call>\s*(?:\{|<function=|[\w.-]+\s*<arg_key>)"),
    _marker("a <function=…> call", "<function=", r"<function=[\w.-]+>\s*(?:<parameter=|\{|</function>)"),
    _marker("an <invoke> call", "<invoke", r"<invoke name=[\"'][^\"'\n]+[\"']>|<invoke>\s*<tool_name>"),
    _marker("[TOOL_CALLS]", "[TOOL_CALLS]", r"\[TOOL_CALLS\]\s*[\[{\w]"),
    _marker("Kimi's call tokens", "<|tool_call", r"<\|tool_calls?_(?:section_)?begin\|>"),
    _marker("<|python_tag|>", "<|python_tag|>", r"<\|python_tag\|>"),
    _marker("DeepSeek's call tokens", "<｜", r"<｜(?:tool▁calls?▁begin|DSML)｜"),
    _marker("a harmony call", "to=", r"\bto=functions\.\w|<\|channel\|>\w+ to=\w"),
    _marker("Action and Action Input", "Action Input:", r"^[ \t]*Action:[^\n]*\n[ \t]*Action Input:", re.MULTILINE),
    _marker("a JSON action", '"action"', r"^[ \t]*Action:\s*(?:```\w*\s*)?\{\s*\"action\"\s*:", re.MULTILINE),
    _marker("<|tool_call|>", "<|tool_call|>", r"<\|tool_call\|>\s*[\[{]"),
    _marker("a plug-in's call", "<|action_start|>", r"<\|action_start\|>\s*<\|(?:plugin|interpreter)\|>"),
    _marker("Qwen's first call tokens", "✿FUNCTION✿", r"✿FUNCTION✿:"),
)
"""How assistants call tools in their text."""

RESULTS: Sequence[Marker] = (
    _marker("OBSERVATION:", "OBSERVATION:", r"\A\s*OBSERVATION:"),
    _marker("<tool_response>", "<tool_response>", r"\A\s*<tool_response>"),
    _marker("<returncode>", "<returncode>", r"\A\s*<returncode>"),
    _marker("<function_results>", "<function_results>", r"\A\s*<function_results>"),
    _marker("FUNCTION RESPONSE:", "FUNCTION RESPONSE:", r"\A\s*FUNCTION RESPONSE:"),
    _marker("[TOOL_RESULTS]", "[TOOL_RESULTS]", r"\A\s*\[TOOL_RESULTS\]"),
    _marker("the prompt of a shell", "bash-$", r"(?:\A|\n)bash-\$\s*\Z"),
)
"""How a user's later turn shows a tool's result."""

_REACT_RESULT = re.compile(r"\A\s*Observation:")
_ACTED = re.compile(r"^[ \t]*Action\b|```\s*\Z|</\w+>\s*\Z", re.MULTILINE)
_REACT_OFFER = re.compile(
    r"\A\s*Answer the following questions as best you can.*^Action: [^\n]*one of \[", re.DOTALL | re.MULTILINE
)
_RENDERED = re.compile(
    r"\s*(?:SYSTEM: |USER: |<\|im_(?:start|system|user)\|>|<s>\s*\[|\[INST\]|\[AVAILABLE_TOOLS\]|<\|begin_of_text\|>"
    r"|<\|start_header_id\|>|<\|start\|>|<｜begin▁of▁sentence｜>)"
)
_FUSED_RESULT = re.compile(r"\n\nFUNCTION RESPONSE: |<tool_response>\s*\S|\[TOOL_RESULTS\]|<｜tool▁outputs?▁begin｜>")
_OFFER = re.compile(
    r"(?i)\b(?:respond|reply|answer|return|output)\b[^.\n]{0,80}\b(?:function|tool)[ _-]calls?\b"
    r"|\byou (?:can|may) (?:use|call|invoke)\b[^.\n]{0,60}\b(?:functions?|tools?)\b"
    r"|\b(?:you have|with) access to (?:the following |these )?(?:functions|tools)\b"
    r"|\bfunction signatures within <tools>"
)
_REQUEST = re.compile(r"""["'](?:model|messages|tools|functions|tool_choice)["']\s*:""")
_FENCED = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`[^`\n]+`")


def signs_of(messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> Iterator[ToolSign]:
    """Yield every sign, structure before text, in message order."""
    if tools:
        yield ToolSign(Tool.DECLARED, "tools are given", "tools")
    yield from _signs_in_structure(messages)
    before: JsonObject | None = None
    for index, message in enumerate(messages):
        role, texts = role_of(message), list(texts_of(message))
        if len(texts) > 1:
            texts.append("".join(texts))  # as templates print a list of parts
        for text in texts:
            for kind, what in _signs_in_text(role, text, before):
                yield ToolSign(kind, what, f"messages[{index}].content")
        before = message


def _signs_in_structure(messages: Sequence[JsonObject]) -> Iterator[ToolSign]:
    for index, message in enumerate(messages):
        role, where = role_of(message), f"messages[{index}]"
        if role in DECLARING_ROLES:
            yield ToolSign(Tool.DECLARED, f"the role {role}", f"{where}.role")
        elif role in RESULT_ROLES or role in CALL_ROLES:
            yield ToolSign(Tool.TRANSCRIPT, f"the role {role}", f"{where}.role")
        for tool, keys in ((Tool.TRANSCRIPT, CALL_KEYS), (Tool.DECLARED, DECLARING_KEYS)):
            for key in keys:
                if message.get(key) and message[key] not in EMPTY:
                    yield ToolSign(tool, f"the key {key}", f"{where}.{key}")
        content = message.get("content")
        for part in [message, *content] if isinstance(content, list) else [message]:
            if (kind := kind_of(part)) in CALL_PARTS:
                yield ToolSign(Tool.TRANSCRIPT, f"a part {kind}", f"{where}.content")


def kind_of(part: Json | JsonObject) -> str:
    """Return the `type` of a message or part, or ""."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _signs_in_text(role: str, text: str, before: JsonObject | None) -> Iterator[tuple[Tool, str]]:
    if role == "user":
        yield from _signs_of_user(text, before)
    elif role not in STRUCTURAL:  # templates print a role that they do not know as the system's
        if role != "assistant":
            yield from _marked(DECLARATIONS, text, Tool.DECLARED)
        if role not in ("system", "developer"):
            yield from _marked(CALLS, without_code(text, whole=True), Tool.TRANSCRIPT)


def _signs_of_user(text: str, before: JsonObject | None) -> Iterator[tuple[Tool, str]]:
    if before is not None and role_of(before) != "system":
        yield from _marked(RESULTS, text, Tool.TRANSCRIPT)
        if _REACT_RESULT.match(text) and any(_ACTED.search(said) for said in texts_of(before)):
            yield Tool.TRANSCRIPT, "Observation: after an action"
    if _RENDERED.match(text):
        yield from _marked(DECLARATIONS, text, Tool.DECLARED)
        yield from _marked(CALLS, text, Tool.TRANSCRIPT)
        if _FUSED_RESULT.search(text):
            yield Tool.TRANSCRIPT, "a tool's answer in a rendered conversation"
    elif _REACT_OFFER.match(text):
        yield Tool.DECLARED, "a list of actions, offered by a user's turn"
    elif "{" in text and "name" in text and _OFFER.search(text):
        unquoted = without_code(text)
        if DEFINITION.is_in(unquoted) and not _REQUEST.search(unquoted):
            yield Tool.DECLARED, f"{DEFINITION.what}, offered by a user's turn"


def _marked(markers: Sequence[Marker], text: str, kind: Tool) -> Iterator[tuple[Tool, str]]:
    return ((kind, marker.what) for marker in markers if marker.is_in(text))


def without_code(text: str, *, whole: bool = False) -> str:
    """Return the text without fenced code and code between backticks.

    `whole`: a text that is one fence gives what the fence holds.
    """
    if "`" not in text and "~~~" not in text:
        return text
    if whole and (only := _FENCED.fullmatch(text.strip())):
        return only.group(2)
    return _INLINE.sub(" ", _FENCED.sub(" ", text))


def role_of(message: JsonObject) -> str:
    """Return the role in lower case, words joined by underscores."""
    role = message.get("role")
    return _plain_role(role) if isinstance(role, str) else ""


@lru_cache(maxsize=256)
def _plain_role(role: str) -> str:
    return role.lower().replace("-", "_").replace(" ", "_")


def texts_of(message: JsonObject) -> Iterator[str]:
    """Yield the texts of a message's content."""
    content: Json = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                yield text
