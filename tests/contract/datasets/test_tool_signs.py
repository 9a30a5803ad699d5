"""Signs of tools: each marker in the mouth of its role, and each thing that only looks like one. All words are ours."""

from __future__ import annotations

import pytest

from pipeline.datasets.tool_signs import Tool, ToolSign, signs_of, without_code
from pipeline.records import JsonObject

pytestmark = pytest.mark.contract

BAKE = '{"name": "bake", "description": "Bakes a \\"loaf\\".", "parameters": {"type": "object", "properties": {}}}'
GLAIVE = "You are a baker with access to the following functions. Use them if required -\n"
OFFER = "Reply with a JSON for a function call that fits.\n"
COMMANDS = "COMMANDS:\nrise:\n  docstring: lets the dough rise\n  signature: rise <minutes>\n"
REACT = (
    "Answer the following questions as best you can.\n\nOven: bakes.\n\nUse this:\nAction: the action, one of [Oven]\n"
)


def said(role: str, text: object, **keys: object) -> JsonObject:
    return {"role": role, "content": text, **keys}  # type: ignore[dict-item]  # JSON, as the tests write it


def kinds(*messages: JsonObject, tools: tuple[JsonObject, ...] = ()) -> set[str]:
    return {str(sign.kind) for sign in signs_of(messages, tools)}


DECLARED, CALLED = {"tools_declared"}, {"tool_transcript"}
ASKED = said("user", "One loaf, please.")
DONE = said("assistant", "In the oven.\n```\nbake\n```")

# Structure


@pytest.mark.parametrize(
    "messages",
    [
        *((ASKED, said(role, "warm")) for role in ("tool", "function", "ipython", "observation", "tool_response")),
        *((ASKED, said(role, "warm")) for role in ("function-response", "FUNCTION RESPONSE", "function_call")),
        (ASKED, said("assistant", None, tool_calls=[{"id": "a", "function": {"name": "bake", "arguments": "{}"}}])),
        (ASKED, said("assistant", None, function_call={"name": "bake", "arguments": "{}"})),
        (ASKED, said("user", "warm", tool_call_id="a")),
        *((ASKED, said("assistant", [{"type": kind, "name": "bake"}])) for kind in ("tool_use", "tool_call")),
        (ASKED, said("user", [{"type": "tool_result", "content": "warm"}])),
        (ASKED, {"type": "function_call", "name": "bake", "arguments": "{}"}),
        *((ASKED, said("assistant", "", **{key: {"name": "bake"}})) for key in ("tool_call", "function_calls")),
    ],
)
def test_roles_keys_and_parts_show_a_transcript(messages: tuple[JsonObject, ...]) -> None:
    assert CALLED == kinds(*messages)


def test_tools_and_the_role_that_declares_them_are_declared() -> None:
    assert DECLARED == kinds(ASKED, tools=({"type": "function"},))
    assert DECLARED == kinds(said("tool_declare", "# Tools"), ASKED)


@pytest.mark.parametrize("key", ["tools", "functions"])
@pytest.mark.parametrize("tools", [[{"name": "bake"}], '[{"name": "bake"}]'])
def test_tools_that_a_message_carries_are_declared(key: str, tools: object) -> None:
    """DeepSeek-V3.2's template finds them there."""
    assert DECLARED == kinds(said("system", "Be brief.", **{key: tools}), ASKED)


@pytest.mark.parametrize("key", ["tool_calls", "function_call", "tool_call_id", "tools", "functions"])
def test_an_empty_key_shows_nothing(key: str) -> None:
    empty: tuple[object, ...] = (None, [], "[]", "{}")
    assert set() == kinds(ASKED, *(said("assistant", "No.", **{key: nothing}) for nothing in empty))


@pytest.mark.parametrize("kind", [["text"], {"tool_use": 1}, None, 4])
def test_a_part_whose_type_is_no_text_shows_nothing(kind: object) -> None:
    assert set() == kinds(said("user", [{"type": kind, "text": "Bread?"}]), said("user", "Bread?", type=kind))


def test_a_sign_says_what_was_seen_and_where() -> None:
    found = list(signs_of([ASKED, said("assistant", "<functioncall> {}")], ()))

    assert [ToolSign(Tool.TRANSCRIPT, "a <functioncall>", "messages[1].content")] == found


# Text, by role


@pytest.mark.parametrize(
    "text",
    [
        GLAIVE + '{"name": "bake"}',
        f"SYSTEM: {GLAIVE}{BAKE}",
        f"<tools>\n{BAKE}\n</tools>",
        "<tools>\n<function>\n<name>bake</name>",
        '<tools>\n<tool name="bake">',
        "---- BEGIN FUNCTION #1: bake ----\nDescription: bakes",
        COMMANDS,
        "# Tools\n\nnamespace functions {\n\ntype bake = () => any;\n}",
        "Environment: ipython\nTools: oven, mixer",
        "Action: one of [bake, knead]",
        "Action: the action to take, should be one of [bake, knead]",
        f"Here is a list of functions in JSON format that you can invoke:\n[{BAKE}]",
        "You have access to the following tools:\n\n### bake\nBakes.",
        f"[AVAILABLE_TOOLS] [{BAKE}][/AVAILABLE_TOOLS]",
        f"Du darfst backen: {BAKE}",
        '{"name": "bake", "parameters": {"type": "dict", "properties": {}}}',
        "{'name': 'bake', 'description': 'Bakes.', 'input_schema': {'type': 'object'}}",
        f"<functions>\n<function>{BAKE}</function>",
        f"<|tool|>[{BAKE}]<|/tool|>",
    ],
)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_text_declares_tools(role: str, text: str) -> None:
    assert DECLARED == kinds(said(role, text), ASKED)


@pytest.mark.parametrize("role", ["context", "instructions", ""])
def test_a_role_that_templates_print_as_system_declares_tools(role: str) -> None:
    assert DECLARED == kinds(said(role, f"<tools>\n{BAKE}\n</tools>"), ASKED)


def test_a_declaration_may_be_cut_into_parts() -> None:
    parts = [{"type": "text", "text": GLAIVE}, {"type": "text", "text": '{"name": "bake"}'}]

    assert DECLARED == kinds(said("system", parts), ASKED)


@pytest.mark.parametrize(
    "text",
    [
        '<functioncall> {"name": "bake", "arguments": \'{"loaves": 1}\'}',
        'Gladly. <functioncall> {"name": "bake"}',
        '<tool_call>\n{"name": "bake", "arguments": {}}\n</tool_call>',
        "<tool_call>bake\n<arg_key>loaves</arg_key>",
        "<tool_call>\n<function=bake>\n<parameter=loaves>1</parameter>",
        "<function=bake>\n<parameter=loaves>1</parameter>\n</function>",
        '<function=bake>{"loaves": 1}</function>',
        "<function=bake>\n</function>",
        '<function_calls>\n<invoke name="bake">',
        "<function_calls>\n<invoke>\n<tool_name>bake</tool_name>",
        '[TOOL_CALLS] [{"name": "bake"}]',
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.bake:0",
        "<|python_tag|>bake()",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function",
        "<｜DSML｜function_calls>",
        "<|channel|>commentary to=functions.bake <|constrain|>json",
        "I should bake.\nAction: bake\nAction Input: 1 loaf",
        'Action:\n{"action": "bake"}',
        "<|action_start|><|plugin|>",
        "✿FUNCTION✿: bake",
        '```\n<functioncall> {"name": "bake"}\n```',
    ],
)
@pytest.mark.parametrize("role", ["assistant", "model", "ai"])
def test_an_assistants_text_calls_a_tool(role: str, text: str) -> None:
    assert CALLED == kinds(ASKED, said(role, text))


@pytest.mark.parametrize(
    "text",
    [
        "OBSERVATION:\nwarm",
        "<tool_response>\nwarm\n</tool_response>",
        "<returncode>0</returncode>\n<output>warm</output>",
        "<function_results>warm</function_results>",
        "Observation: warm",
        "FUNCTION RESPONSE: warm",
        "[TOOL_RESULTS] warm",
        "warm\n(Open file: n/a)\n(Current directory: /bakery)\nbash-$",
    ],
)
def test_a_later_user_turn_that_a_machine_wrote(text: str) -> None:
    assert CALLED == kinds(ASKED, DONE, said("user", text))


@pytest.mark.parametrize("text", ["OBSERVATION:\nwarm", "Observation: warm", "<tool_response>", "bash-$"])
def test_the_same_as_a_first_turn_is_a_persons_own_words(text: str) -> None:
    assert set() == kinds(said("system", "Be brief."), said("user", text))


def test_parts_of_a_list_are_read_as_text() -> None:
    text = {"type": "text", "text": GLAIVE + '{"name": "bake"}'}

    assert DECLARED == kinds(said("system", [text]), ASKED)


@pytest.mark.parametrize(
    "text",
    [
        OFFER + BAKE,
        f"You can use these tools:\n{BAKE}\nBake one loaf.",
        f"[AVAILABLE_TOOLS] [{BAKE}][/AVAILABLE_TOOLS][INST] One loaf. [/INST]",
        f"<|im_start|>system\n<tools>\n{BAKE}\n</tools><|im_end|>",
        REACT,
    ],
)
def test_a_users_turn_may_carry_the_whole_offer(text: str) -> None:
    assert DECLARED == kinds(said("user", text))


def test_a_rendered_conversation_in_one_text_is_read_whole() -> None:
    text = 'USER: One loaf.\n\n\nASSISTANT: <functioncall> {"name": "bake"} <|endoftext|>\n\n\nFUNCTION RESPONSE: {}'

    assert CALLED == kinds(said("user", text))


# What only looks like tools


@pytest.mark.parametrize(
    "text",
    [
        "You are a helpful assistant, with no access to external functions.",
        GLAIVE,
        "Think between <|begin_of_thought|> and <|end_of_thought|>.",
        "The bakery has access to the following functions of the till: sum and change.",
        "Environment: ipython",
        "You may not use tools. Answer in one of [yes, no].",
        '{"type": "object", "properties": {"name": {"type": "string"}, "parameters": {"type": "array"}}}',
    ],
)
def test_a_system_text_that_offers_nothing(text: str) -> None:
    assert set() == kinds(said("system", text), ASKED)


@pytest.mark.parametrize(
    "text",
    [
        "The following functions are homework: sin, cos. Use them if required - or not.",
        'My contract: [{"type":"function","name":"pay","inputs":[{"name":"to","type":"address"}]}]. How do I call it?',
        'paths:\n  /loaf:\n    get:\n      parameters: [{"name": "id", "in": "path", "schema": {"type": "object"}}]',
        '{"$schema": "x", "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}',
        f'Why is this refused?\n```json\n{{"model": "m", "tools": [{{"function": {BAKE}}}]}}\n```',
        f'Return the tool calls of {{"model": "m", "tools": [{{"function": {BAKE}}}]}} as a table.',
        f"Here is a schema, turn it into a class:\n{BAKE}",
        'It prints <tool_call>\n{"name": "bake"}\n</tool_call> as text. Which flag do I need?',
        "Which pattern finds what stands between <functioncall> and <|endoftext|>?",
        "Why can I not write `<function=bake>` or std::function<T(int)>?",
        "Say <|DONE|> when you are done.<|endoftext|>",
        "Prove that <|x + y|> is at most <|x|> + <|y|>, where <|tool|> is a mean.",
        "Act as a Linux terminal. I type commands and you print what they print. First: pwd",
        "We play: you are the game, I say `north` or `take lamp`.",
        "Action: the baker shouts. Observation: nobody hears. Thought: is it late? Go on in this style.",
        "Which tools do I need to plane an oak board? I have access to a bench.",
        "SYSTEM: oven offline. USER: the baker. Write a scene with these two.",
        "What is the difference between <|im_start|> and <|im_end|>?",
        "Design an agent that has access to the following tools: oven, mixer. Write its prompt.",
        "tools = [Tool(name='Oven', func=bake, description='bakes')]\nWhy does my agent fail?",
        "assert answer.tool_calls[0].function.name == 'bake'",
        "namespace functions { void bake(); }",
    ],
)
def test_a_user_who_speaks_of_tools_has_none(text: str) -> None:
    assert set() == kinds(said("user", text))


@pytest.mark.parametrize(
    "text",
    [
        'A call looks so:\n```\n<tool_call>\n{"name": "bake"}\n</tool_call>\n```\nand nothing else.',
        "Write `<functioncall> {}` there.",
        "The schema needs a name and parameters of the type object.",
        "Action: rise early. Result: good bread.",
    ],
)
def test_an_assistant_who_explains_calls_makes_none(text: str) -> None:
    assert set() == kinds(ASKED, said("assistant", text))


def test_a_person_who_observes_after_plain_talk_is_no_machine() -> None:
    history = (said("user", "My dough?"), said("assistant", "Let it rise."), said("user", "Observation: it rose."))

    assert set() == kinds(*history)


def test_a_message_without_text_or_with_an_odd_role_is_no_error() -> None:
    odd: tuple[JsonObject, ...] = ({"role": None, "content": None}, {"role": "user", "content": 3}, {"content": []})

    assert set() == kinds(*odd)


@pytest.mark.parametrize(
    "text, left",
    [
        ("plain", "plain"),
        ("a `code` b", "a   b"),
        ("a\n```\nx\n```\nb", "a\n \nb"),
        ("a\n~~~py\nx\n~~~\nb", "a\n \nb"),
        ("a\n```\nnever closed", "a\n "),
    ],
)
def test_what_is_quoted_as_code_is_left_out(text: str, left: str) -> None:
    assert left == without_code(text)


@pytest.mark.parametrize("text", ["`" * 50_000, "```" + " " * 50_000, "\n" * 50_000 + "Action Input:", "[" * 50_000])
def test_an_odd_text_takes_no_time(text: str) -> None:
    """Quadratic patterns would take minutes here."""
    history = (said("system", text + "COMMANDS:"), ASKED, said("assistant", text), said("user", text))

    assert set() == kinds(*history)
