"""A sample: a prompt in OpenAI's schema, and its answer.

Guarantees: an answer is text parts only; control tokens are added by id where it is rendered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.records import Completion, Json, JsonObject, Prompt, ToolCall

if TYPE_CHECKING:
    from harness.tiny_target.words import Draw


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of one completion, in order.

    `reasoning` is dropped where the prompt does not think.
    """

    reasoning: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt and its answer."""

    prompt: Prompt
    answer: Answer

    @property
    def completion(self) -> Completion:
        """Return the answer as a completion that ended by itself."""
        return Completion(
            reasoning=self.answer.reasoning if self.prompt.thinking else None,
            content=self.answer.content,
            tool_calls=self.answer.calls,
            finish_reason="tool_calls" if self.answer.calls else "stop",
        )


def ask(topic: str, question: str, answer: Answer, *, thinking: bool = True) -> Sample:
    """Return a sample of one user turn."""
    return Sample(Prompt(id=topic, messages=(user(question),), thinking=thinking), answer)


def user(text: str) -> JsonObject:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str, *, reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> JsonObject:
    """Return an assistant message of the history.

    Reasoning and calls only where there are any.
    """
    message: dict[str, Json] = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def call(index: int, name: str, arguments: JsonObject) -> ToolCall:
    """Return the `index`-th call of a conversation.

    Under the id that Kimi's layout gives it.
    """
    return ToolCall(f"functions.{name}:{index}", name, json.dumps(dict(arguments), ensure_ascii=False))


def with_system(sample: Sample, text: str) -> Sample:
    """Return the sample under a system message."""
    messages = ({"role": "system", "content": text}, *sample.prompt.messages)
    return replace(sample, prompt=replace(sample.prompt, messages=messages))


def with_history(sample: Sample, earlier: Sample) -> Sample:
    """Return the sample after an earlier, answered one.

    The earlier one's tools stay declared.
    """
    past = assistant(earlier.answer.content, reasoning=earlier.answer.reasoning)
    messages = (*earlier.prompt.messages, past, *sample.prompt.messages)
    return replace(sample, prompt=replace(sample.prompt, messages=messages, tools=earlier.prompt.tools))


def with_tools(sample: Sample, tools: tuple[JsonObject, ...]) -> Sample:
    """Return the sample beside tools that it does not need."""
    return replace(sample, prompt=replace(sample.prompt, tools=tools))


def loosened(sample: Sample, draw: Draw) -> Sample:
    """Return the sample, sometimes with white space at seams.

    Hosted APIs lose it there.
    """
    reasoning, content = sample.answer.reasoning, sample.answer.content
    if draw.chance(0.12):
        reasoning = draw.one((" ", "\n", "\n\n")) + reasoning
    if draw.chance(0.12):
        reasoning += draw.one((" ", "\n", "\n\n"))
    if content and draw.chance(0.15):
        content = draw.one((" ", "\n", "\n\n")) + content
    if content and draw.chance(0.10):
        content += draw.one(("\n", " ", "\n\n"))
    return replace(sample, answer=replace(sample.answer, reasoning=reasoning, content=content))
