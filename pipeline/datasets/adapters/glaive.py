r"""B1, Glaive function calling v2: conversations that call functions.

Functions are JSON objects in the system text, and a whole conversation is one string.

Guarantees: functions become `tools`, calls `tool_calls` and function responses tool messages; a turn head counts only
at the start or after an empty line. What cannot be read for certain (a call whose arguments are no JSON, a response to
no call, a turn whose end the publisher's cleaning overwrote) ends the conversation before it. A row whose functions
cannot be read is rejected: a prompt never declares other functions than the row does. A call has its result right after
it. Texts are those between the publisher's own marks, with every blank; a call's arguments are the row's own text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from pipeline.datasets.conversation import Messages, identity, sound, to_drawn_question, to_last_question
from pipeline.datasets.rows import Raw, Reject, RejectedError, object_in, objects, objects_in, parsed, role_in, text_in
from pipeline.records import Json, JsonObject, Prompt, RefusedError

NAME, RESHAPED = "B1", "B1-llamafactory"
COLUMNS, RESHAPED_COLUMNS = frozenset({"system", "chat"}), frozenset({"conversations", "tools"})
MARK = "<|endoftext|>"
END = f" {MARK}"
DECODER = json.JSONDecoder()
SYSTEM = "SYSTEM: "
OFFER = "with access to the following functions. Use them if required -"
OFFERED = f"{SYSTEM}You are a helpful assistant {OFFER}\n"
HEAD = re.compile(r"(\A|\n\n+)(USER|ASSISTANT|FUNCTION RESPONSE): ")
SHORT_HEAD = re.compile(r"(\A|\n\n+)(USER|A|FUNCTION RESPONSE): ")
SEPARATOR = "\n\n\n"
"""What stands between turns where there are functions; a row without them may have one line feed less."""
CALL = re.compile(r"(.*?)<functioncall>\s*(\{.*\})\s*\Z", re.DOTALL)
ARGUMENTS = re.compile(r"""\{\s*"name":\s*"([^"\\]+)",\s*"arguments":\s*(?:'(\{.*\})'|(\{.*\}))\s*\}\s*\Z""", re.DOTALL)
"""A call, its arguments between single quotes, which make the whole no JSON, or bare."""
ROLES = {"human": "user", "gpt": "assistant", "function_call": "call", "observation": "tool", "system": "system"}
PAGE = """glaiveai/glaive-function-calling-v2: 112,960 rows, of which 34,598 (30.6 %) say that there are no functions.

Schema: `system` (`SYSTEM: …`, and JSON objects one after another where there are functions), `chat` (`USER: `,
`ASSISTANT: `, `FUNCTION RESPONSE: ` at the start or after an empty line; `A: ` where no `ASSISTANT: ` stands).
Functions become `tools` in the order of the row. `<functioncall> {"name": …, "arguments": '…'}` becomes a tool call:
the arguments are the very text between the outer single quotes, text before the call is kept, and a function response
becomes a tool message. A row with calls ends before one of its answers, drawn by its
id, so that calls are asked for as well as last words; a row without them at its last user turn. A row without
functions keeps its system text (`You are a helpful assistant, with no access to external functions.`) as a system
turn.

Dropped: the sentence that introduces the functions, since the target's own template introduces them (a row that
introduces them in other words is rejected); ` <|endoftext|>` at the end of a turn; the answers after the question. The
conversation ends before a call that cannot be read (arguments that are no JSON object, as with `\\'` inside or
`Infinity`; the key `parameters`; another syntax; a function that is not declared; a call without a response), before a
response to no call, and before a turn in which `<|endoftext|>` stands anywhere else, where the publisher's cleaning
overwrote text. Two or three line feeds stand between the turns of a row, always as many; any more belong to the turn.
Two functions of one name that say different things reject the row (338 rows); the same one twice is one. Preparation
keeps at most 3 rows a first user turn: the same flight and pizza questions come hundreds of times.

`B1-llamafactory` is the shape in which LLaMA-Factory ships the rows: `conversations` (`from` is `human`, `gpt`,
`function_call` or `observation`, `value`) and `tools` (a JSON list as text)."""


def adapt(raw: Raw) -> Prompt:
    """Return a published row's conversation. Raises RejectedError."""
    turns, tools = _read(raw.value)
    return _prompt(NAME, raw, sound(turns), tools)


def adapt_reshaped(raw: Raw) -> Prompt:
    """Return LLaMA-Factory's conversation. Raises RejectedError."""
    tools = declared(objects(parsed(text_in(raw.value, "tools"), "tools"), "tools"))
    known = {_name(tool) for tool in tools}
    turns = without_loose_ends(list(_reshaped(objects_in(raw.value, "conversations"), known)))
    return _prompt(RESHAPED, raw, sound(turns), tools)


def conversation(row: JsonObject) -> Messages:
    """Return a published row's conversation, answers included.

    It ends before what is not sound. Raises RejectedError.
    """
    return sound(_read(row)[0])


def _read(row: JsonObject) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the turns that are certain, and the tools."""
    text = text_in(row, "system")
    system: list[JsonObject] = []
    tools: list[JsonObject] = []
    if text.startswith(OFFERED):
        tools = declared(_objects(text.removeprefix(OFFERED)))
    elif OFFER in text:
        raise RejectedError(Reject.UNREADABLE_TOOLS, "the functions are introduced in other words than published")
    elif text.startswith(SYSTEM):
        system = [{"role": "system", "content": text.removeprefix(SYSTEM).removesuffix("\n\n")}]
    elif text:
        raise RejectedError(Reject.WRONG_SHAPE, f"system does not begin with {SYSTEM!r}")
    turns = _turns(text_in(row, "chat"), {_name(tool) for tool in tools})
    return without_loose_ends([*system, *turns]), tools


def _prompt(name: str, raw: Raw, messages: Messages, tools: Sequence[JsonObject]) -> Prompt:
    row_id = identity(name, None, *map(raw.value.get, sorted(RESHAPED_COLUMNS if name == RESHAPED else COLUMNS)))
    return Prompt(row_id, messages, tuple(tools), dataset=name)


def to_one_question(prompt: Prompt) -> Prompt:
    """Return the conversation up to one of its questions.

    It is drawn where functions are called, else the last. Raises RejectedError(NO_TURNS).
    """
    calls = any(turn.get("tool_calls") for turn in prompt.messages)
    return to_drawn_question(prompt) if calls else to_last_question(prompt)


def _objects(text: str) -> list[JsonObject]:
    """Return the JSON objects that stand one after another.

    Raises RejectedError(UNREADABLE_TOOLS).
    """
    found, at = list[JsonObject](), 0
    while rest := text[at:].lstrip():
        start = len(text) - len(rest)
        try:
            _, at = DECODER.raw_decode(text, start)
            found.append(object_in(text[start:at]))
        except (ValueError, RecursionError, RefusedError) as error:
            raise RejectedError(Reject.UNREADABLE_TOOLS, f"a function is no JSON object: {error}") from None
    if at == 0:
        raise RejectedError(Reject.UNREADABLE_TOOLS, "functions are announced, and none follows")
    return found


def _turns(chat: str, known: set[str]) -> Iterator[JsonObject]:
    heads = list((HEAD if "ASSISTANT: " in chat else SHORT_HEAD).finditer(chat))
    if not heads or heads[0].start(2) > 0:
        raise RejectedError(Reject.NO_TURNS, "chat begins with no turn" if chat.strip() else "chat is empty")
    separator = min([SEPARATOR, *(one.group(1) for one in heads[1:])])
    ends = [one.start(2) for one in heads[1:]] + [len(chat)]
    for number, (one, end) in enumerate(zip(heads, ends, strict=True)):
        content = _content(chat[one.end() : end], separator)
        turn = None if content is None else _turn(one.group(2), content, number, known)
        if turn is None:
            return
        yield turn


def _content(text: str, separator: str) -> str | None:
    """Return what a turn says, or None where unsure."""
    marked = text.rstrip("\n")
    content = marked.removesuffix(END) if marked.endswith(END) else text.removesuffix(separator)
    return None if MARK in content else content


def _turn(head: str, content: str, number: int, known: set[str]) -> JsonObject | None:
    """Return a turn, or None where it is not certain.

    The conversation ends before such a turn.
    """
    if head == "USER":
        return {"role": "user", "content": content}
    if head == "FUNCTION RESPONSE":
        return result_turn(content)
    if "<functioncall>" not in content:
        return {"role": "assistant", "content": content}
    found = CALL.fullmatch(content)
    call = _call(found.group(2)) if found and content.count("<functioncall>") == 1 else None
    return call_turn(found.group(1), *call, number, known) if found and call else None


def _call(text: str) -> tuple[str, str] | None:
    """Return a call's name, and the text of its arguments."""
    found = ARGUMENTS.match(text)
    if found is None:
        return None
    arguments = found.group(2) or found.group(3)
    try:
        object_in(arguments)
    except RefusedError:
        return None
    return found.group(1), arguments


def _reshaped(turns: Sequence[JsonObject], known: set[str]) -> Iterator[JsonObject]:
    read = [(role_in(turn, "from", ROLES), text_in(turn, "value")) for turn in turns]
    for number, (role, text) in enumerate(read):
        if role == "call":
            call = _call(text)
            made = call_turn("", *call, number, known) if call else None
            if made is None:
                return
            yield made
        else:
            yield result_turn(text) if role == "tool" else {"role": role, "content": text}


def _name(tool: JsonObject) -> str:
    function = tool["function"]
    return str(function["name"]) if isinstance(function, dict) else ""


def declared(functions: Iterable[JsonObject]) -> list[JsonObject]:
    """Return functions as `tools`; the same one twice is one.

    Raises RejectedError(UNREADABLE_TOOLS, TOOL_TWICE).
    """
    known: dict[str, JsonObject] = {}
    for function in functions:
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RejectedError(Reject.UNREADABLE_TOOLS, "a function has no name")
        if known.setdefault(name, function) != function:
            raise RejectedError(Reject.TOOL_TWICE, f"{name!r} is declared twice, each time another way")
    return [{"type": "function", "function": dict(function)} for function in known.values()]


def call_turn(text: str, name: str, arguments: str, number: int, known: AbstractSet[str]) -> JsonObject | None:
    """Return an assistant's turn with one call.

    None where the function is not declared. The call's id has the form in which Kimi's models write theirs; other
    families take any.
    """
    if name not in known:
        return None
    call: Json = {
        "id": f"functions.{name}:{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def result_turn(text: str) -> JsonObject:
    """Return a result; `without_loose_ends` names its call."""
    return {"role": "tool", "content": text}


def without_loose_ends(turns: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the turns before an unpaired call or result.

    Results get the ids of their calls.
    """
    kept: list[JsonObject] = []
    for position, turn in enumerate(turns):
        after = turns[position + 1]["role"] if position + 1 < len(turns) else None
        if turn["role"] == "tool":
            calls = kept[-1].get("tool_calls") if kept else None
            call = calls[0] if isinstance(calls, list) and calls else None
            if not isinstance(call, dict):
                break
            kept.append({"role": "tool", "tool_call_id": str(call["id"]), "content": turn["content"]})
        elif turn.get("tool_calls") and after not in ("tool", None):
            break
        else:
            kept.append(turn)
    return kept
