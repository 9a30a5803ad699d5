"""DeepSeek-V3.2's layout: V3.1's turns, calls as tags.

Guarantees: prompts are what the encoder that DeepSeek ships in place of a chat template makes of the messages, as vLLM
and SGLang carry it. Tools are declared in the system text. The engines' copies declare them without the blank lines of
DeepSeek's own, in as many tokens, so only returned prompt ids prove a prompt with tools. `<｜DSML｜invoke …>` is text
around one special token, which a text that came over an API may lack. Refuses prompts after which the encoder lets
nobody speak, and parsed calls: their ids are invented, and their JSON is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.formats.chat_template import load_template
from pipeline.formats.deepseek import ASSISTANT, BEGIN, END, THINK, THINK_CLOSE, USER
from pipeline.formats.emitted_calls import EmittedCall
from pipeline.formats.format import Opener
from pipeline.formats.messages import calls_of, content_of, reasoning_of, role_of, unsupported, written
from pipeline.formats.pieces import Piece
from pipeline.formats.tagged import Dialect, Grammar, TaggedFormat
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Json, JsonObject, Prompt

DSML: Final = "｜DSML｜"

GRAMMAR: Final = Grammar(
    end=END,
    think=THINK,
    think_close=THINK_CLOSE,
    after={None: frozenset({DSML}), DSML: frozenset({DSML})},
    text_after=frozenset({DSML}),
    closers=frozenset({DSML}),
    tags=frozenset({"function_calls", "invoke", "parameter"}),
)

_INVOKE: Final = re.compile(rf'<{DSML}invoke name="([^"]*)">(.*?)</{DSML}invoke>', re.DOTALL)
_PARAMETER: Final = re.compile(
    rf'<{DSML}parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML}parameter>', re.DOTALL
)

_ROLES: Final = ("system", "user", "assistant", "tool")

_HOW_TO_CALL: Final = """## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the \
user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
"""
"""What the system text says before it lists the tools."""

_MARKS: Final = re.compile(f"({DSML}|{THINK}|{THINK_CLOSE})")


def prompt_pieces(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the rendered prompt, up to the model's turn."""
    one, messages = tokenizer.id_of, prompt.messages
    last = _checked(prompt)
    yield one(BEGIN)
    if messages[0].get("role") != "system":
        yield from _tools(prompt.tools, tokenizer)
    for position, message in enumerate(messages):
        role = message.get("role")
        goes_on = one(THINK if prompt.thinking and position >= last else THINK_CLOSE)
        if role == "system":
            yield content_of(message)
            yield from _tools(prompt.tools, tokenizer) if position == 0 else ()
        elif role == "user":
            yield from (one(USER), content_of(message), one(ASSISTANT), goes_on)
        elif role == "tool":
            order, called = _order(messages, position)
            yield "\n\n<function_results>" if order == 1 else ""
            yield f"\n<result>{content_of(message)}</result>"
            yield from ("\n</function_results>\n\n", goes_on) if order == called else ()
        else:
            yield from _answer(message, tokenizer, shown=prompt.thinking and position > last)


def _checked(prompt: Prompt) -> int:
    """Return where the last question stands, -1 without one.

    Refuses what the encoder refuses or drops.
    """
    messages = prompt.messages
    for message in messages:
        role_of(message, _ROLES)
        if message.get("tools") or message.get("response_format"):
            raise unsupported("a message carries tools or a response format of its own")
    if not messages or not _hands_over(messages):
        raise unsupported("neither a question nor the last of the tools' results ends the prompt, so nobody goes on")
    return max((n for n, message in enumerate(messages) if message.get("role") == "user"), default=-1)


def _hands_over(messages: Sequence[JsonObject]) -> bool:
    if messages[-1].get("role") != "tool":
        return messages[-1].get("role") == "user"
    order, called = _order(messages, len(messages) - 1)
    return order == called


def _order(messages: Sequence[JsonObject], position: int) -> tuple[int, int]:
    """Return the result's number among its calls, and their count.

    Numbers begin with 1.
    """
    before = [n for n, message in enumerate(messages[:position]) if message.get("role") != "tool"]
    calls = messages[before[-1]].get("tool_calls") if before else None
    called = len(calls) if isinstance(calls, list) and messages[before[-1]].get("role") == "assistant" else 0
    if (order := position - before[-1] if before else 1) > called:
        raise unsupported("a tool's result answers no call")
    return order, called


def _tools(tools: Sequence[JsonObject], tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield what the system text says of the tools.

    The markers in it are control tokens.
    """
    if not tools:
        return
    yield "\n\n"
    for piece in _MARKS.split(_HOW_TO_CALL):
        yield tokenizer.id_of(piece) if _MARKS.fullmatch(piece) else piece
    yield "<functions>\n"
    yield "\n".join(map(_declared, tools))
    yield "\n</functions>\n"


def _declared(tool: JsonObject) -> str:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise unsupported("a tool has no function", field="tools")
    return written(function)


def _answer(message: JsonObject, tokenizer: Tokenizer, *, shown: bool) -> Iterator[Piece]:
    """Yield an earlier answer.

    Its thinking is `shown` only after the last question.
    """
    content = content_of(message)
    reasoning = reasoning_of(message, content, THINK_CLOSE)
    calls = list(calls_of(message, as_text=False))
    if shown:
        if not reasoning and not calls:
            raise unsupported("an answer after the last question neither thought nor called")
        yield from (reasoning, tokenizer.id_of(THINK_CLOSE))
    yield content
    mark = tokenizer.id_of(DSML)
    if calls:
        yield from ("\n\n<", mark, "function_calls>\n")
        for number, (name, _, arguments) in enumerate(calls):
            yield from ("\n" if number else "", "<", mark, f'invoke name="{name}">\n')
            yield from _parameters(arguments, mark)
            yield from ("\n</", mark, "invoke>")
        yield from ("\n</", mark, "function_calls>")
    yield tokenizer.id_of(END)


def _parameters(arguments: dict[str, Json], mark: int) -> Iterator[Piece]:
    for number, (key, value) in enumerate(arguments.items()):
        is_text, said = ("true", value) if isinstance(value, str) else ("false", written(value))
        yield from ("\n" if number else "", "<", mark, f'parameter name="{key}" string="{is_text}">{said}</')
        yield from (mark, "parameter>")


def _ambiguity(prompt: Prompt) -> str | None:
    if not prompt.tools:
        return None
    return "engines tell DeepSeek-V3.2's tools in two texts of one length, so only returned prompt ids tell which"


def _template_inputs(prompt: Prompt) -> tuple[Prompt, dict[str, Json]]:
    return prompt, {"bos_token": BEGIN, "enable_thinking": prompt.thinking}


def emitted_calls(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[EmittedCall]:
    """Yield a section's calls, whose tags say types."""
    mark = tokenizer.id_of(DSML)
    text = "".join(DSML if piece == mark else str(piece) for piece in pieces)
    for name, said in _INVOKE.findall(text):
        members = (
            f"{json.dumps(key)}: {json.dumps(value) if is_text == 'true' else value}"
            for key, is_text, value in _PARAMETER.findall(said)
        )
        yield EmittedCall(name, f"{{{', '.join(members)}}}")


V32: Final = Dialect(GRAMMAR, prompt_pieces, _template_inputs, Opener.PROMPT, Opener.NOBODY, emitted_calls, _ambiguity)


def load(name: str, tokenizer: Tokenizer) -> TaggedFormat:
    """Return V3.2's layout on `tokenizer`, called `name`."""
    return TaggedFormat(name, tokenizer, V32, load_template(tokenizer.directory))
