"""Ask an engine's chat endpoint for text and true ids.

Guarantees: every request asks for the ids; an answer without them is an error and is never judged by its text. View and
ids are kept apart, so a rebuild sees what a hosted API would show and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness.emulator.oracle_log import OracleEntry
from harness.emulator.survey import SurveyedAnswer, SurveyQuestion
from harness.views.resplit import is_canonical
from harness.views.roundtrip import MODEL, RoundTrip
from harness.views.view import Deltas, Profile, Seam
from pipeline.formats.format import Format
from pipeline.generation.engines.openrouter import OpenRouter, encode_body
from pipeline.proof.wire.sse import sse_data
from pipeline.proof.wire.token_ids import ReturnedIds
from pipeline.records import Ids, Prompt

OK: Final = 200
AT_ONCE: Final = 8

ENGINES: Mapping[str, Profile] = {
    # SGLang names each call anew by its place, so that the model's own number is in no field.
    "sglang": Profile("sglang", "SGLang", tool_ids="invented", returns_ids=True),
    # vLLM holds white space back and strips it from the end of the reasoning.
    "vllm": Profile("vllm", "vLLM", seam=Seam.STRIPPED, deltas=Deltas.BATCHES, returns_ids=True),
}
"""What each engine, with its Kimi parsers, loses at most; the survey measures it."""


class EngineError(Exception):
    """An engine does not answer, or returns no ids."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as sent, and its answer as received."""

    question: SurveyQuestion
    request: bytes
    raw: bytes


def trips_of(engine: str) -> list[RoundTrip]:
    """Return all ways to ask, by stream and by tools."""
    profile = ENGINES[engine]
    return [RoundTrip(profile, stream, tools_sent) for stream in (False, True) for tools_sent in (False, True)]


def body_of(engine: str, question: SurveyQuestion, fmt: Format) -> dict[str, Any]:
    """Return the request body, keys in a fixed order.

    Tools travel as `tools`, or stand in the prompt alone. SGLang takes no message of the role `tool_declare`, so such a
    prompt goes as ids. The template wants the tools as Kimi's own tokenizer writes them.
    """
    prompt, trip = question.prompt, question.trip
    switches: dict[str, Any] = {"thinking": prompt.thinking}
    messages = [dict(message) for message in prompt.messages]
    more: dict[str, Any] = {}
    if prompt.tools and trip.tools_sent:
        switches["tools_ts_str"] = fmt.declare_tools(prompt.tools)
        more["tools"] = list(prompt.tools)
    elif prompt.tools and engine == "sglang":
        more["input_ids"] = list(fmt.render(prompt))
    elif prompt.tools:
        messages.insert(0, {"role": "tool_declare", "content": fmt.declare_tools(prompt.tools)})
    return {
        "model": MODEL,
        "messages": messages,
        "temperature": 1.0,
        "max_tokens": question.max_tokens,
        "seed": question.seed,
        "chat_template_kwargs": switches,
        **more,
        **asked_for_ids(engine, stream=trip.stream),
    }


def asked_for_ids(engine: str, *, stream: bool) -> dict[str, Any]:
    """Return the fields that make an engine return ids.

    SGLang refuses in streams what it takes elsewhere.
    """
    streamed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    if engine == "sglang" and stream:
        return {**streamed, "return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True}
    return {**streamed, "return_token_ids": True}


def ask(engine: str, url: str, questions: Sequence[SurveyQuestion], fmt: Format) -> list[Answered]:
    """Return every question's answer, in order.

    Raises EngineError for a status that is not 200.
    """
    return asyncio.run(_ask_all(url, [(one, encode_body(body_of(engine, one, fmt))) for one in questions]))


def ask_bodies(url: str, bodies: Sequence[tuple[SurveyQuestion, Mapping[str, Any]]]) -> list[Answered]:
    """Return the answers to request bodies made elsewhere."""
    return asyncio.run(_ask_all(url, [(question, encode_body(dict(body))) for question, body in bodies]))


async def _ask_all(url: str, asked: Sequence[tuple[SurveyQuestion, bytes]]) -> list[Answered]:
    slots = asyncio.Semaphore(AT_ONCE)
    async with OpenRouter(f"{url.rstrip('/')}/v1") as client:

        async def one(question: SurveyQuestion, body: bytes) -> Answered:
            async with slots:
                answer = await client.send(body)
            if answer.status != OK:
                raise EngineError(f"{question.prompt.id}: status {answer.status}, {answer.raw[:300]!r}")
            return Answered(question, body, answer.raw)

        return list(await asyncio.gather(*(one(question, body) for question, body in asked)))


def exchange_of(answered: Answered, fmt: Format) -> SurveyedAnswer:
    """Return the text view beside the true ids. Raises EngineError."""
    question = answered.question
    name = question.trip.profile.name
    served, output = true_ids(answered)
    truth = OracleEntry(
        question.prompt.id,
        question.prompt.id,
        name,
        stream=question.trip.stream,
        thinking=question.prompt.thinking,
        prompt_ids=served,
        output_ids=output,
        noncanonical=not is_canonical(fmt.tokenizer, output),
        resegmented=None,
        cut=not fmt.end_ids.intersection(output[-1:]),
        cost="0",
    )
    return SurveyedAnswer(question.trip, question.prompt, answered.raw, truth, question.max_tokens, named=name)


def true_ids(answered: Answered) -> tuple[Ids, Ids]:
    """Return prompt and output ids. Raises EngineError without them.

    They are read from the fields for ids, whatever the text says.
    """
    where, found = answered.question.prompt.id, ReturnedIds()
    text = answered.raw.decode()
    for data in sse_data(text) if answered.question.trip.stream else [text]:
        if data == "[DONE]":
            continue
        chunk = json.loads(data)
        found.add_top(chunk)
        for choice in chunk.get("choices") or ():
            found.add_choice(choice)
    prompt_ids, token_ids = found.prompt_ids(), found.token_ids()
    if prompt_ids is None or token_ids is None:
        raise EngineError(f"{where}: the engine was asked for ids and returned none, in {text[:200]!r}")
    return prompt_ids, token_ids


def thinking_of(prompt: Prompt) -> str:
    """Return `thinking` or `instant`."""
    return "thinking" if prompt.thinking else "instant"
