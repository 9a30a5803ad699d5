"""Exchanges in the schema of recorded ones, made from ids that are known through a profile's view.

Guarantees: the answer is what the view shows of the ids, in OpenRouter's dialect, so that what is learned from it can
be held against the truth.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.dialect import Meta, body_of, events_of
from harness.roundtrips import MODEL, Trip, shown_of
from pipeline.formats.parts import Format
from pipeline.records import Ids, Json, Prompt


@dataclass(frozen=True, slots=True)
class Told:
    """What stands beside the answer: the copy's fidelity, the ids that are served before the prompt, the limit."""

    model: str = MODEL
    fidelity: str = "verbatim"
    prefix: Ids = ()
    max_tokens: int | None = None


def recorded(number: int, ids: Ids, prompt: Prompt, trip: Trip, fmt: Format, told: Told) -> dict[str, Json]:
    """One line of a file of exchanges: the answer with the emitted `ids` (shape [n]) to `prompt`."""
    served = told.prefix + fmt.render(prompt)
    shown = shown_of(ids, prompt, trip, fmt)
    meta = Meta(
        generation_id=f"gen-{number}",
        created=number,
        model=told.model,
        provider=trip.profile.name,
        prompt_tokens=len(served),
        cost=0.0,
        prompt_ids=served if trip.ids else None,
        token_ids=ids if trip.ids else None,
        logprobs=shown.logprobs if trip.logprobs else None,
    )
    return {
        "id": f"{number:012x}",
        "source": {"repo": "own/words"},
        "fidelity": told.fidelity,
        "endpoint": "openrouter.ai/api/v1/chat/completions",
        "model": told.model,
        "provider": trip.profile.name,
        "status": 200,
        "stream": trip.stream,
        "request": request(prompt, trip, fmt, told),
        "headers": {},
        "body": "".join(events_of(shown, meta)) if trip.stream else json.dumps(body_of(shown, meta)),
    }


def request(prompt: Prompt, trip: Trip, fmt: Format, told: Told) -> dict[str, Json]:
    """The body of the request, tools in a message of their own unless they are sent."""
    messages: list[Json] = [dict(message) for message in prompt.messages]
    asked: dict[str, Json] = {"model": told.model, "stream": trip.stream, "reasoning": {"enabled": prompt.thinking}}
    if prompt.tools and trip.tools_sent:
        asked["tools"] = [dict(tool) for tool in prompt.tools]
    elif prompt.tools:
        messages.insert(0, {"role": "tool_declare", "content": fmt.declare_tools(prompt.tools)})
    if told.max_tokens is not None:
        asked["max_tokens"] = told.max_tokens
    if trip.ids:
        asked["return_token_ids"] = True
    if trip.logprobs:
        asked["logprobs"] = True
    return {**asked, "messages": messages}


def file_of(lines: Sequence[dict[str, Json]]) -> str:
    """The text of a file of exchanges."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
