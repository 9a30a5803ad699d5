"""Two independent readings of an answer, for comparison.

A few plain lines of `json`, and the openai SDK, which most programs use. Guarantees: no code is shared with `pipeline`.
The plain reading refuses nothing: what is cut or contradicts itself is read as far as it goes, and an error anywhere in
it is noted. The SDK's own retries are off, and nothing that it returns is mended; it is None where the SDK raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import openai


@dataclass(slots=True)
class SecondReading:
    """What an answer says.

    `calls` are (id, name, arguments); `usage` is prompt tokens, completion tokens and cost.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    usage: tuple[int | None, int | None, Decimal | None] = (None, None, None)
    error: bool = False
    choices: int = 0
    finish: str | None = None
    done: bool = False
    _slots: dict[object, list[str]] = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """Whether there is no text and no call."""
        return not (self.content or self.reasoning or self.calls)


def read(raw: bytes) -> SecondReading:
    """Read a whole answer, one body or a stream."""
    text, said = raw.decode("utf-8", "replace"), SecondReading()
    whole = text.strip()[:1] in ("{", "[")
    for value in _values(text, said):
        said.error = said.error or bool(value.get("error"))
        if isinstance(usage := value.get("usage"), dict) and usage:
            cost = _decimal(usage.get("cost"))
            said.usage = (usage.get("prompt_tokens"), usage.get("completion_tokens"), cost)
        for choice in value.get("choices") or []:
            said.choices += 1
            said.error = said.error or bool(choice.get("error"))
            said.finish = choice.get("finish_reason") or said.finish
            told = choice.get("message" if whole else "delta")
            _add(said, told if isinstance(told, dict) else {}, indexed=not whole)
    ordered = sorted(said._slots.items(), key=lambda one: one[0] if isinstance(one[0], int) else 0)  # noqa: SLF001
    said.calls = tuple((one[0], one[1], one[2]) for _, one in ordered)
    return said


def _decimal(value: object) -> Decimal | None:
    """Return a number as it is written, or None."""
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return Decimal(value) if is_number else None  # type: ignore[arg-type]  # it was just seen to be a number


def _values(text: str, said: SecondReading) -> Iterator[dict[str, Any]]:
    if text.strip()[:1] in ("{", "["):
        yield from _objects(text.strip())
        return
    for line in text.split("\n"):
        data = line.strip().removeprefix("data:").strip() if line.startswith("data:") else ""
        said.done = said.done or data == "[DONE]"
        yield from _objects(data)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError:
        return
    if isinstance(value, dict):
        yield value


def _add(said: SecondReading, told: dict[str, Any], *, indexed: bool) -> None:
    said.content += told.get("content") or ""
    said.reasoning += told.get("reasoning") or told.get("reasoning_content") or _detailed(told)
    for position, call in enumerate(told.get("tool_calls") or []):
        index = call.get("index") if indexed else None
        index = position if index is None else index
        slot = said._slots.setdefault(index, ["", "", ""])  # noqa: SLF001 - its own module
        function = call.get("function") or {}
        slot[0] = slot[0] or call.get("id") or ""
        slot[1] = slot[1] or function.get("name") or ""
        slot[2] += function.get("arguments") or ""


def _detailed(told: dict[str, Any]) -> str:
    """Return OpenRouter's second copy of the reasoning."""
    details = told.get("reasoning_details")
    texts = [one for one in details if isinstance(one, dict)] if isinstance(details, list) else []
    return "".join(one.get("text") or "" for one in texts if one.get("type") == "reasoning.text")


Slots = dict[object, list[str]]


async def read_by_sdk(client: openai.AsyncOpenAI, asked: dict[str, object], *, stream: bool) -> SecondReading | None:
    """Return the SDK's reading of the answer to `asked`.

    `asked` goes into the body. None where the SDK raises.
    """
    said, slots = SecondReading(), Slots()
    try:
        answer: Any = await client.chat.completions.create(model="any", messages=[], stream=stream, extra_body=asked)
        if stream:
            async for chunk in answer:
                for choice in chunk.choices or ():
                    _add_sdk(said, slots, choice.delta)
        else:
            for choice in answer.choices or ():
                _add_sdk(said, slots, choice.message)
    except openai.APIError:
        return None
    said.calls = tuple((one[0], one[1], one[2]) for one in slots.values())
    return said


def _add_sdk(said: SecondReading, slots: Slots, told: Any) -> None:  # noqa: ANN401 - the SDK's message or delta
    if told is None:
        return
    extra = told.model_extra or {}
    said.content += told.content or ""
    said.reasoning += extra.get("reasoning") or extra.get("reasoning_content") or _detailed(extra)
    for position, call in enumerate(told.tool_calls or ()):
        index = getattr(call, "index", None)
        slot = slots.setdefault(position if index is None else index, ["", "", ""])
        slot[0] = slot[0] or call.id or ""
        if call.function is not None:
            slot[1] = slot[1] or call.function.name or ""
            slot[2] += call.function.arguments or ""
