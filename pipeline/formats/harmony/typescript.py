"""Tool declarations for gpt-oss: TypeScript types in a namespace.

Guarantees: the text is the one that openai-harmony 0.0.8 writes. The model's chat template writes many schemas in
another way, some with as many tokens: `written_once` says whether both write one text. Refused are `oneOf`, a function
without a description, and defaults that are no text, truth, null or whole number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pipeline.formats.messages import unsupported
from pipeline.records import Json, JsonObject

INDENT = "    "
_SCALARS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_WHOLE = 2**63
_ONCE = frozenset({"type", "description", "enum", "items", "format", "pattern", "minimum", "maximum", "minLength"})
_ONCE_ABOVE = frozenset({"type", "properties", "required", "additionalProperties", "$schema"})
_IN_UNIONS = ("string", "number", "boolean", "null")


def declare(tools: Sequence[JsonObject]) -> str:
    """Return the section that declares `tools` (OpenAI schema).

    RefusedError(PROMPT_UNSUPPORTED) says what it cannot declare.
    """
    types = "".join(f"{_function(tool, position)}\n\n" for position, tool in enumerate(tools))
    return f"# Tools\n\n## functions\n\nnamespace functions {{\n\n{types}}} // namespace functions"


def _function(tool: JsonObject, position: int) -> str:
    where = f"tools[{position}]"
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise unsupported("a tool that is not {'type': 'function', 'function': {'name': …}}", where)
    described, parameters = function.get("description"), function.get("parameters")
    if not isinstance(described, str):
        raise unsupported("a function without a description, which engines do not take", where)
    lines = [f"// {line.removesuffix(chr(13))}" for line in described.removesuffix("\n").split("\n") if described]
    signature = "()" if parameters is None else f"(_: {_type(parameters, '', where)})"
    return "\n".join([*lines, f"type {function['name']} = {signature} => any;"])


def _type(schema: Json, indent: str, where: str) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("oneOf"), list):
        raise unsupported("a schema with oneOf", where)
    kind = schema.get("type")
    if isinstance(kind, list) and any(isinstance(name, str) for name in kind):
        return " | ".join("number" if name == "integer" else name for name in kind if isinstance(name, str))
    if kind == "object":
        return _object(schema, indent, where)
    if kind == "array":
        return f"{_type(schema['items'], indent, where)}[]" if "items" in schema else "Array<any>"
    if kind == "string" and isinstance(values := schema.get("enum"), list):
        return " | ".join(f'"{value}"' for value in values if isinstance(value, str)) or "string"
    return _SCALARS.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: dict[str, Json], indent: str, where: str) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    described = schema.get("description")
    lines = [f"{indent}// {described}\n"] if isinstance(described, str) else []
    lines.append("{\n")
    for name, spec in properties.items() if isinstance(properties, dict) else ():
        optional = "" if isinstance(required, list) and name in required else "?"
        lines += [f"{indent}{line}\n" for line in _comments(spec)]
        lines.append(f"{indent}{name}{optional}: {_property(spec, indent + INDENT, where)}\n")
    return "".join([*lines, f"{indent}}}"])


def _comments(schema: Json) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if isinstance(title := schema.get("title"), str):
        yield from (f"// {title}", "//")
    if isinstance(described := schema.get("description"), str):
        yield f"// {described}"
    if isinstance(examples := schema.get("examples"), list) and examples:
        yield "// Examples:"
        yield from (f'// - "{example}"' for example in examples if isinstance(example, str))


def _property(schema: Json, indent: str, where: str) -> str:
    text = _type(schema, indent, where)
    if not isinstance(schema, dict):
        return f"{text},"
    if schema.get("nullable") is True and "null" not in text:
        text += " | null"
    return f"{text},{_default(schema, where) if 'default' in schema else ''}"


def _default(schema: dict[str, Json], where: str) -> str:
    value, values = schema["default"], schema.get("enum")
    if isinstance(value, str):
        return f" // default: {value}" if isinstance(values, list) and values else f' // default: "{value}"'
    if not _is_plain(value):
        raise unsupported(f"a default that languages write in different ways: {str(value)[:60]}", where)
    return f" // default: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"


def _is_plain(value: Json) -> bool:
    """Return whether every JSON library writes a default alike.

    No fraction and no great number: those are written in different ways.
    """
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str) or (isinstance(value, int) and -_WHOLE <= value < _WHOLE)


def written_once(tools: Sequence[JsonObject]) -> bool:
    """Return whether the chat template writes these tools alike."""
    return all(isinstance(function := tool.get("function"), dict) and _is_once(function) for tool in tools)


def _is_once(function: dict[str, Json]) -> bool:
    described, parameters = function.get("description"), function.get("parameters")
    if not isinstance(described, str) or not described or "\n" in described:
        return False
    if parameters is None:
        return True
    if not isinstance(parameters, dict) or parameters.get("type") != "object" or not parameters.keys() <= _ONCE_ABOVE:
        return False
    properties, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(properties, dict) or not properties or not isinstance(required, list):
        return False
    return all(isinstance(spec, dict) and _is_once_written(spec) for spec in properties.values())


def _is_once_written(schema: dict[str, Json]) -> bool:
    kind, items, described = schema.get("type"), schema.get("items"), schema.get("description", "…")
    if not schema.keys() <= _ONCE or not isinstance(described, str) or not described:
        return False
    if kind == "array":
        return isinstance(items, dict) and items.get("type") in tuple(_SCALARS) and "enum" not in items
    if isinstance(kind, list):
        return bool(kind) and all(name in _IN_UNIONS for name in kind)
    if "enum" in schema:
        values = schema["enum"]
        return (
            kind == "string" and isinstance(values, list) and bool(values) and all(isinstance(v, str) for v in values)
        )
    return kind in tuple(_SCALARS)
