"""Tool declarations for Kimi K2.5: TypeScript types.

Guarantees: the text is the one that Moonshot's `tool_declaration_ts.py` writes for the same tools, keys sorted first.
Raises SchemaError for a schema that it cannot write (`oneOf`, `const`, untyped, foreign `$ref`); the caller then falls
back to compact JSON, as Kimi's own tokenizer does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pipeline.records import Json, JsonObject

INDENT = "  "
_SCALAR_LIMITS: Mapping[str, tuple[str, ...]] = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_UNION_NAMES: Mapping[str, str] = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}


class SchemaError(Exception):
    """A parameter schema that has no TypeScript form here."""


class _References:
    """What `$ref`s of one function point to."""

    def __init__(self) -> None:
        self.definitions: dict[str, Json] = {}
        self.points_at_root = False

    def name(self, reference: str) -> str:
        if reference == "#":
            self.points_at_root = True
            return "parameters"
        name = reference.removeprefix("#/$defs/")
        if name == reference or name.split("/")[-1] not in self.definitions:
            raise SchemaError(f"reference {reference!r} is neither '#' nor a known '#/$defs/…'")
        return name.split("/")[-1]


def sort_keys(value: Json) -> Json:
    """Return the value with every object's keys sorted."""
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [sort_keys(item) for item in value]
    return value


def declare_functions(functions: Sequence[JsonObject]) -> str:
    """Return the declaration text of functions.

    Each is `{"name", "description"?, "parameters"?}` with its keys already sorted.
    """
    types = "\n".join(_function(function) for function in functions)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{types}\n}}\n"


def _function(function: JsonObject) -> str:
    references = _References()
    schema = function.get("parameters") or {}
    if not isinstance(schema, dict):
        raise SchemaError(f"parameters are {type(schema).__name__}, not an object")
    _register(schema, references)
    # Once before anything is written: that shows whether the parameters point at the root. A definition that does so
    # comes too late, here as in Moonshot's own code.
    _fields(schema, "", references)
    fields = _fields(schema, "", references)
    parts = []
    root = references.points_at_root
    if root:
        body = ",\n".join(_property_lines(schema, INDENT, references, required_first=False))
        parts.append(f"interface parameters {{{chr(10) + body + chr(10) if body else ''}}}")
    known = list(references.definitions.items())
    parts += [_interface(name, value, references) for name, value in known]
    if len(references.definitions) != len(known):
        raise SchemaError("a definition defines others")
    description = function.get("description")
    if isinstance(description, str) and description:
        parts.append(_comment(description, ""))
    argument = "parameters" if root else fields
    parts.append(f"type {function.get('name', 'function')} = (_: {argument}) => any;")
    return "\n".join(parts)


def _interface(name: str, schema: Json, references: _References) -> str:
    if not isinstance(schema, dict):
        raise SchemaError(f"definition {name!r} is no object")
    described = schema.get("description")
    comment = _comment(described, "") + "\n" if isinstance(described, str) and described else ""
    return f"{comment}interface {name} {_type(schema, '', references)}"


def _comment(text: str, indent: str) -> str:
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


def _register(schema: JsonObject, references: _References) -> None:
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        references.definitions.update(definitions)


def _type(schema: Json, indent: str, references: _References) -> str:
    if isinstance(schema, bool):
        return "any" if schema else "null"
    if not isinstance(schema, dict):
        raise SchemaError(f"schema {schema!r} is neither an object nor a boolean")
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return references.name(reference)
    if isinstance(choices := schema.get("anyOf"), list):
        return " | ".join(_type(choice, indent, references) for choice in choices)
    if isinstance(values := schema.get("enum"), list):
        return " | ".join(f'"{value}"' if isinstance(value, str) else json.dumps(value) for value in values)
    return _named_type(schema, indent, references)


def _named_type(schema: dict[str, Json], indent: str, references: _References) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_union_name(name) for name in kind)
    if kind == "object":
        _register(schema, references)
        return _fields(schema, indent, references)
    if kind == "array":
        return _array(schema, indent, references)
    if isinstance(kind, str):
        return "number" if kind == "integer" else kind
    if not schema:
        return "any"
    raise SchemaError(f"schema without a type: {json.dumps(schema)[:120]}")


def _union_name(kind: Json) -> str:
    if not isinstance(kind, str) or kind not in _UNION_NAMES:
        raise SchemaError(f"unknown type {kind!r} in a union")
    return _UNION_NAMES[kind]


def _array(schema: JsonObject, indent: str, references: _References) -> str:
    item = schema.get("items") or {}
    inner = indent + INDENT
    docs = _docs(item, inner)
    if docs:
        return f"Array<\n{docs}{inner}{_type(item, inner, references)}\n{indent}>"
    return f"Array<{_type(item, indent, references)}>"


def _fields(schema: JsonObject, indent: str, references: _References) -> str:
    lines = _property_lines(schema, indent + INDENT, references)
    if (extra := schema.get("additionalProperties")) is not None:
        of_extra = "any" if extra is True else "never" if extra is False else _type(extra, indent + INDENT, references)
        lines.append(f"{indent + INDENT}[k: string]: {of_extra}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _property_lines(
    schema: JsonObject, indent: str, references: _References, *, required_first: bool = True
) -> list[str]:
    """Return one line a property.

    Required properties first, each group by name. An interface of the root keeps the order of the keys alone.
    """
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise SchemaError("properties is no object, or required is no list")
    ordered = sorted(properties, key=lambda name: (required_first and name not in required, name))
    return [_property(name, properties[name], name in required, indent, references) for name in ordered]


def _property(name: str, schema: Json, required: bool, indent: str, references: _References) -> str:  # noqa: FBT001
    default = schema.get("default") if isinstance(schema, dict) else None
    docs = _docs(schema, indent)
    if default is not None:
        docs += f"{indent}// Default: {json.dumps(default, ensure_ascii=False)}\n"
    return f"{docs}{indent}{name}{'' if required else '?'}: {_type(schema, indent, references)}"


def _docs(schema: Json, indent: str) -> str:
    if not isinstance(schema, dict) or "$ref" in schema:
        return _ref_docs(schema, indent)
    lines = []
    if (text := schema.get("description", "")) and isinstance(text, str):
        lines.append(_comment(text, indent))
    allowed = () if "anyOf" in schema or "enum" in schema else _SCALAR_LIMITS.get(str(schema.get("type")), ())
    limits = ", ".join(f"{key}: {schema[key]}" for key in allowed if key in schema)
    if limits:
        lines.append(f"{indent}// {limits}")
    return "".join(line + "\n" for line in lines)


def _ref_docs(schema: Json, indent: str) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return _comment(text, indent) + "\n" if isinstance(text, str) and text else ""
