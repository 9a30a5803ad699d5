"""Answers to the committed probes as they are known, for rehearsals of a probe against the emulator.

Guarantees: each answer is ids of the format's own layout, thinking where the probe thinks, with calls where it calls,
and longer than its limit where it is to be cut. Reasoning is of many lengths and begins and ends in white space, as
what a route does to that is to be learned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from harness.emulator.answers import PoolAnswerer
from pipeline.formats.format import Format, Parts
from pipeline.formats.kimi.tokens import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.generation.outcome import guarded
from pipeline.generation.probe.probes import Probe
from pipeline.records import Ids, Refusal

STEP = " I look at it once more, and it holds."


def known_pool(probes: Iterable[Probe], fmt: Format) -> PoolAnswerer:
    """A pool that answers each probe's prompt; probes that the format does not render have no answer."""
    answers: dict[Ids, Ids] = {}
    for number, probe in enumerate(probes):
        prompt = guarded(lambda one=probe: fmt.render(one.prompt))  # type: ignore[misc]  # bound at once
        if not isinstance(prompt, Refusal):
            answers[prompt] = known_answer(probe, fmt, number)
    return PoolAnswerer(by_prompt=answers)


def known_answer(probe: Probe, fmt: Format, number: int = 0) -> Ids:
    """The ids of an answer that is as known; `number` decides how long it thinks."""
    thinking = probe.prompt.thinking
    reasoning = f" Let me see.{STEP * (number % 7)}\n" if thinking else None
    body = tuple(_body(probe, fmt))
    return fmt.assemble(Parts(reasoning, think_closed=thinking, body=body, ended=True)).ids


def _body(probe: Probe, fmt: Format) -> Iterator[str | int]:
    known, markers = probe.known, fmt.tool_markers()
    if known.content is not None:
        yield known.content
    elif known.cut:
        yield "one, two, three, " * probe.max_tokens
    elif known.contains:
        yield f"\n\n{', '.join(known.contains)}.\n"
    if known.calls:
        yield markers[SECTION_BEGIN]
        for position, name in enumerate(known.calls):
            arguments = json.dumps({"text": f"{probe.id} é", "city": "Oslo"}, ensure_ascii=False)
            called = (markers[CALL_BEGIN], f"functions.{name}:{position}", markers[ARGUMENT_BEGIN], arguments)
            yield from (*called, markers[CALL_END])
        yield markers[SECTION_END]
