"""An answer as the openai SDK reads it: the second opinion that most programs would have.

Guarantees: the SDK's own retries are off, and nothing of what it returns is mended. None where it raises.
"""

from __future__ import annotations

from typing import Any

import openai

from harness.measures.second_readings import Said

Slots = dict[object, list[str]]


async def sdk_said(client: openai.AsyncOpenAI, asked: dict[str, object], *, stream: bool) -> Said | None:
    """Content, reasoning and calls of one answer to `asked`, which goes into the body."""
    said, slots = Said(), Slots()
    try:
        answer: Any = await client.chat.completions.create(model="any", messages=[], stream=stream, extra_body=asked)
        if stream:
            async for chunk in answer:
                for choice in chunk.choices or ():
                    _add(said, slots, choice.delta)
        else:
            for choice in answer.choices or ():
                _add(said, slots, choice.message)
    except openai.APIError:
        return None
    said.calls = tuple((one[0], one[1], one[2]) for one in slots.values())
    return said


def _add(said: Said, slots: Slots, told: Any) -> None:  # noqa: ANN401 - the SDK's message or delta
    if told is None:
        return
    extra = told.model_extra or {}
    said.content += told.content or ""
    said.reasoning += extra.get("reasoning") or extra.get("reasoning_content") or ""
    for position, call in enumerate(told.tool_calls or ()):
        index = getattr(call, "index", None)
        slot = slots.setdefault(position if index is None else index, ["", "", ""])
        slot[0] = slot[0] or call.id or ""
        if call.function is not None:
            slot[1] = slot[1] or call.function.name or ""
            slot[2] += call.function.arguments or ""
