"""One fault put into a stream that was sent as it should be: the true ids all the same, or a refusal.

The faults are those that change how much text there is. Text that is exchanged for as many other tokens is no matter of
a stream: `test_blind_kinds.py` has what is known of those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fixtures.answers import FORMAT
from harness.strategies.completions import completions, emitted
from harness.strategies.properties import asked, is_counted_risk
from harness.views.roundtrip import RoundTrip, raw_of, true_fingerprint
from harness.views.view import PROFILES, Deltas
from pipeline.proof.reconstruct import reconstruct
from pipeline.proof.wire.completion import completion_of_sse
from pipeline.records import Ids, RefusedError, TokenRow

pytestmark = pytest.mark.contract

Chunk = dict[str, Any]
Fault = Callable[[list[Chunk], int], list[Chunk]]


def text_of(chunk: Chunk) -> tuple[str, str] | None:
    """Field and text of a chunk that carries some."""
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        for name in ("reasoning", "content"):
            if delta.get(name):
                return name, delta[name]
    return None


def saying(chunk: Chunk, name: str, text: str) -> Chunk:
    return {**chunk, "choices": [{**chunk["choices"][0], "delta": {"content": "", name: text}}]}


def spoken(chunks: Sequence[Chunk]) -> list[int]:
    return [place for place, chunk in enumerate(chunks) if text_of(chunk) is not None]


def sent_twice(chunks: list[Chunk], place: int) -> list[Chunk]:
    return [*chunks[: place + 1], *chunks[place:]]


def lost(chunks: list[Chunk], place: int) -> list[Chunk]:
    return [*chunks[:place], *chunks[place + 1 :]]


def cumulative(chunks: list[Chunk], _place: int) -> list[Chunk]:
    said = {"reasoning": "", "content": ""}
    found = []
    for chunk in chunks:
        if (told := text_of(chunk)) is not None:
            said[told[0]] += told[1]
            found.append(saying(chunk, told[0], said[told[0]]))
        else:
            found.append(chunk)
    return found


def whole_again(chunks: list[Chunk], _place: int) -> list[Chunk]:
    """Each field's whole text once more, before the finish."""
    told = [text for chunk in chunks if (text := text_of(chunk)) is not None]
    last = spoken(chunks)[-1]
    again = [
        saying(chunks[last], name, "".join(text for field, text in told if field == name))
        for name in ("reasoning", "content")
        if any(field == name for field, _ in told)
    ]
    return [*chunks[: last + 1], *again[-1:], *chunks[last + 1 :]]


FAULTS: dict[str, Fault] = {
    "sent twice": sent_twice,
    "lost": lost,
    "cumulative": cumulative,
    "whole again": whole_again,
}


@pytest.mark.parametrize("profile", ["siliconflow", "chutes"])
@pytest.mark.parametrize("name", FAULTS)
@given(data=st.data())
def test_a_fault_in_a_stream_makes_no_wrong_row(name: str, profile: str, data: st.DataObject) -> None:
    trip = RoundTrip(PROFILES[profile], stream=True, tools_sent=False)
    ids, thinking = data.draw(answers(trip))
    chunks = chunks_of(ids, trip, thinking=thinking)
    if not spoken(chunks) or (name == "lost" and not all(map(is_whole, ids))):
        return
    broken = FAULTS[name](chunks, data.draw(st.sampled_from(spoken(chunks))))
    prompt = asked(thinking=thinking)
    try:
        completion = completion_of_sse(
            "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in broken) + "data: [DONE]\n\n"
        )
    except RefusedError:
        return
    row = reconstruct(prompt, completion, FORMAT, true_fingerprint(trip.profile, stream=True))

    if isinstance(row, TokenRow) and row.output_ids != ids:
        assert is_counted_risk(FORMAT, row, ids, trip, thinking=thinking)


@cache
def answers(trip: RoundTrip) -> st.SearchStrategy[tuple[Ids, bool]]:
    """Whole answers in the layout; canonical where deltas are no tokens, as another split is a second fault there."""
    whole = completions(FORMAT).map(lambda parts: (FORMAT.assemble(parts).ids, parts.reasoning is not None))
    if trip.profile.deltas is not Deltas.TOKENS:
        return whole
    return st.one_of(whole, st.tuples(emitted(FORMAT), st.booleans()).filter(is_laid_out))


def is_whole(token: int) -> bool:
    """Half a character that came with the text that was lost stays behind, and may count for what was lost."""
    data = FORMAT.tokenizer.token_bytes(token)
    return data.decode("utf-8", errors="ignore").encode() == data


def is_laid_out(answer: tuple[Ids, bool]) -> bool:
    try:
        FORMAT.parts(answer[0], thinking=answer[1])
    except RefusedError:
        return False
    return True


def chunks_of(ids: Ids, trip: RoundTrip, *, thinking: bool) -> list[Chunk]:
    prompt = asked(thinking=thinking)
    raw = raw_of(ids, prompt, FORMAT.render(prompt), trip, FORMAT).decode()
    return [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
