"""The emulator's cassettes: which providers are asked what, and how an answer shows that it is the case it is called.

Guarantees: a case is a prompt and its settings, the same for recording and replay, so that the request's bytes are the
same; the seed that made the recorded answer stands in the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from harness.tiny_target.samples import assistant, user
from harness.tiny_target.tools import CLOCK, WEATHER
from harness.views.view import PROFILES, Profile
from pipeline.formats.format import Format
from pipeline.generation.engines.request import request_body
from pipeline.records import Ids, Prompt, RefusedError, Route, Sampling, SpanKind, ToolMode

MODEL: Final = "drafter-gate/tiny-kimi"

THINKING = Prompt("thinking", (user("What is 17 + 26?"),))
INSTANT = Prompt("instant", (user("Write a Python function that doubles a number."),), thinking=False)
TOOLS = Prompt("tools", (user("Mia asks: weather in Oslo?"),), tools=(WEATHER, CLOCK))
TURNS = Prompt(
    "turns",
    (
        {"role": "system", "content": "You are a helpful assistant."},
        user("Hi, Ana here from Kyoto!"),
        assistant("Hello Ana! 🙂", reasoning="A greeting from Kyoto.\nBe friendly to Ana."),
        user("What is 40 - 12?"),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One question. `shows` names what the answer must hold, `own_ids` asks for the provider's strongest evidence."""

    name: str
    prompt: Prompt
    shows: Literal["reasoning", "content", "tools", "cut"]
    tool_mode: ToolMode = ToolMode.NONE
    stream: bool = False
    max_tokens: int = 256
    own_ids: bool = False


CASES: Final = {
    case.name: case
    for case in (
        Case("reasoning", THINKING, "reasoning"),
        Case("content_only", INSTANT, "content"),
        Case("tools_raw", TOOLS, "tools", ToolMode.RAW),
        Case("tools_structured", TOOLS, "tools", ToolMode.STRUCTURED),
        Case("multi_turn", TURNS, "reasoning"),
        Case("length_cut", THINKING, "cut", max_tokens=12),
        Case("stream", THINKING, "reasoning", stream=True),
        Case("own_ids", THINKING, "reasoning", stream=True, own_ids=True),
    )
}


def names() -> Iterator[str]:
    """`emulator/PROVIDER/CASE` of every cassette, its path in the library without the suffix."""
    yield from (f"emulator/{slug}/{case}" for slug in PROFILES for case in CASES)


def case_of(name: str) -> tuple[Profile, Case]:
    """Provider and case of a cassette's name. Raises KeyError."""
    _, slug, case = name.split("/")
    return PROFILES[slug], CASES[case]


def request_of(name: str, fmt: Format, seed: int) -> dict[str, object]:
    """The body of the case's request."""
    profile, case = case_of(name)
    sampling = Sampling(
        max_tokens=case.max_tokens,
        seed=seed,
        logprobs=case.own_ids and profile.returns_logprobs,
        return_token_ids=case.own_ids and profile.returns_ids,
    )
    route = Route("emulator", MODEL, profile.slug, stream=case.stream)
    return request_body(case.prompt, route, sampling, case.tool_mode, fmt, name)


def shows(case: Case, ids: Ids, fmt: Format) -> bool:
    """Whether a true answer is what the case is about: whole and with the span it is called for, or cut inside it."""
    try:
        kinds = {span.kind for span in fmt.layout(ids, thinking=case.prompt.thinking)}
    except RefusedError:
        return False
    if case.shows == "cut":
        return SpanKind.END not in kinds and SpanKind.REASONING in kinds
    wanted = {"reasoning": SpanKind.REASONING, "content": SpanKind.CONTENT, "tools": SpanKind.TOOL_SECTION}
    return {SpanKind.END, wanted[case.shows]} <= kinds
