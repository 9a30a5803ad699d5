"""Tool declarations in the TypeScript that Kimi-K2.5 is told."""

from __future__ import annotations

import pytest

from pipeline.formats.kimi.format import declare_tools
from pipeline.formats.kimi.typescript import SchemaError, declare_functions, sort_keys
from pipeline.records import Json, JsonObject, Reason, RefusedError

pytestmark = pytest.mark.contract


def declared(parameters: Json, **rest: Json) -> str:
    """What stands between the braces of the namespace."""
    function = sort_keys({"name": "f", "parameters": parameters, **rest})
    assert isinstance(function, dict)
    text = declare_functions([function])
    head, tail = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    assert text.startswith(head)
    assert text.endswith(tail)
    return text.removeprefix(head).removesuffix(tail)


def field(schema: Json) -> str:
    """How one optional property is declared."""
    text = declared({"type": "object", "properties": {"x": schema}})
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


def test_no_parameters_are_an_empty_object() -> None:
    assert "type f = (_: {}) => any;" == declared({"type": "object", "properties": {}})
    assert "type f = (_: {}) => any;" == declared(None)


def test_required_properties_come_first_each_group_by_name() -> None:
    properties: Json = {name: {"type": "string"} for name in ("b", "a", "d", "c")}
    text = declared({"type": "object", "properties": properties, "required": ["d", "c"]})

    assert "type f = (_: {\n  c: string,\n  d: string,\n  a?: string,\n  b?: string\n}) => any;" == text


def test_descriptions_are_comments_and_empty_lines_stay_empty() -> None:
    assert "// One.\n\n// Three.\ntype f = (_: {}) => any;" == declared({}, description="One.\n\nThree.")


@pytest.mark.parametrize(
    "schema, expected",
    [
        ({"type": "integer"}, "  x?: number"),
        ({"type": "integer", "minimum": 1, "maximum": 7}, "  // maximum: 7, minimum: 1\n  x?: number"),
        ({"type": "string", "pattern": "^a$", "maxLength": 3}, "  // maxLength: 3, pattern: ^a$\n  x?: string"),
        ({"type": "string", "enum": ["c", "f"], "default": "c"}, '  // Default: "c"\n  x?: "c" | "f"'),
        ({"enum": [1, None, True]}, "  x?: 1 | null | true"),
        ({"type": ["string", "null", "array"]}, "  x?: string | null | Array<any>"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "  x?: string | number"),
        ({"type": "array", "items": {"type": "string"}}, "  x?: Array<string>"),
        ({"type": "array"}, "  x?: Array<any>"),
        ({}, "  x?: any"),
        (True, "  x?: any"),
        ({"type": "object", "additionalProperties": False}, "  x?: {\n    [k: string]: never\n  }"),
        ({"type": "object", "properties": {"y": {"type": "boolean"}}}, "  x?: {\n    y?: boolean\n  }"),
        (
            {"type": "array", "items": {"type": "string", "description": "Each."}},
            "  x?: Array<\n    // Each.\n    string\n  >",
        ),
    ],
    ids=[
        "integer", "limits", "string limits", "enum", "mixed enum", "union", "any of", "array", "open array",
        "anything", "true", "closed object", "nested object", "array with comment",
    ],
)  # fmt: skip
def test_each_kind_of_schema_has_its_form(schema: Json, expected: str) -> None:
    assert expected == field(schema)


def test_a_root_reference_makes_an_interface() -> None:
    """A reference to the root makes an interface in the order of the keys."""
    properties: Json = {"z": {"type": "string"}, "a": {"$ref": "#"}}
    text = declared({"type": "object", "properties": properties, "required": ["z"]})

    assert "interface parameters {\n  a?: parameters,\n  z: string\n}\ntype f = (_: parameters) => any;" == text


def test_definitions_are_interfaces() -> None:
    definitions: Json = {"A": {"type": "object", "description": "An A.", "properties": {"n": {"type": "number"}}}}
    text = declared({"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/A"}}})

    assert "// An A.\ninterface A {\n  n?: number\n}\ntype f = (_: {\n  a?: A\n}) => any;" == text


UNWRITABLE: list[Json] = [{"oneOf": []}, {"const": 1}, {"$ref": "#/definitions/A"}, {"description": "no type"}, [1]]


@pytest.mark.parametrize("schema", UNWRITABLE, ids=["one of", "const", "foreign reference", "untyped", "list"])
def test_what_has_no_form_is_an_error(schema: Json) -> None:
    with pytest.raises(SchemaError):
        declared({"properties": {"x": schema}})


def test_a_tool_without_a_form_makes_all_compact_json() -> None:
    """As Kimi's own tokenizer falls back."""
    parameters: Json = {"type": "object", "properties": {"x": {"const": 1}}}
    tools: list[JsonObject] = [{"type": "function", "function": {"name": "é", "parameters": parameters}}]

    expected = (
        '[{"function":{"name":"é","parameters":{"properties":{"x":{"const":1}},"type":"object"}},"type":"function"}]'
    )
    assert expected == declare_tools(tools)


def test_a_tool_that_is_no_function_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        declare_tools([{"name": "flat", "parameters": {}}])

    assert Reason.PROMPT_UNSUPPORTED is refused.value.refusal.reason
