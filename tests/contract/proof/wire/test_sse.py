"""Chunks read by what they share with the one before: never otherwise than in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.proof.wire.completion import completion_of_sse
from pipeline.proof.wire.sse import Frames
from pipeline.records import Completion, Delta, Refusal, RefusedError

pytestmark = pytest.mark.contract

NAMES = ("content", "reasoning", "reasoning_content")


def chunk(delta: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": changes.pop("finish_reason", None)}
    return {"id": "gen-1", "created": 0, "model": "m", "provider": "P", "choices": [choice], **changes}


def told(name: str, text: str) -> dict[str, Any]:
    """A delta as OpenRouter sends it: the reasoning twice."""
    if name != "reasoning":
        return {name: text}
    return {"content": "", name: text, "reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0}]}


def event(value: object, *, ascii_only: bool = False) -> str:
    return f"data: {json.dumps(value, ensure_ascii=ascii_only, separators=(',', ':'))}\n\n"


END = event(chunk({"content": ""}, finish_reason="stop")) + "data: [DONE]\n\n"


def read(raw: str) -> Completion | Refusal:
    try:
        return completion_of_sse(raw)
    except RefusedError as error:
        return error.refusal


def in_full(raw: str) -> Completion | Refusal:
    with patch.object(Frames, "run", lambda _, __, at: ([], at)):
        return read(raw)


@st.composite
def events(draw: st.DrawFn) -> str:
    name, text = draw(st.sampled_from(NAMES)), draw(st.text(min_size=1, max_size=4) | st.sampled_from(['"', "\\", ":"]))
    whole = event(chunk(told(name, text)), ascii_only=draw(st.booleans()))
    changes = [
        ("", ""),
        ('"id":"gen-1"', '"id":"gen-2"'),
        ('"created":0', '"created":1'),
        ('"index":0}', '"index":1}'),
        ('"choices":[', '"error":{"code":502,"message":"x"},"choices":['),
        ('"role"', '"content":"twice","role"'),
        ('"finish_reason":null', '"finish_reason":null,"token_ids":[1]'),
        ('"finish_reason":null', '"finish_reason":"stop"'),
        ('"choices":[', '"usage":{"completion_tokens":3},"choices":['),
        ('"text":"', '"text":"other'),
        (text, text + "\t"),
        (text, text + "\ufeff"),
        (text, text + "\\ud83d"),
        (text, text + '","'),
        ("\n\n", "\n"),
        ("\n\n", "\r\n\r\n"),
        ("data: ", "data:"),
        ("data: ", "event: error\ndata: "),
        ("}]}", "}]}\ndata: {}"),
        ("}]}", "}]}\nmore"),
        ("}]}", "}]} "),
    ]
    before, after = draw(st.sampled_from(changes)) if draw(st.integers(0, 7)) == 0 else ("", "")
    return whole.replace(before, after, 1) + (": a comment\n\n" if draw(st.integers(0, 5)) == 0 else "")


@given(st.lists(events(), max_size=12))
def test_a_stream_read_by_frames_is_the_stream_read_in_full(parts: Sequence[str]) -> None:
    """Refusals too, to the letter; with chunks among them that differ in one thing."""
    raw = "".join(parts) + END

    assert in_full(raw) == read(raw)


@pytest.mark.parametrize("name", NAMES)
def test_after_the_first_chunk_only_text_is_read(name: str) -> None:
    """Escapes, other scripts and comments included; were the frame not found, `chunk` would be read 200 times."""
    texts = ["So", " it", 'q"q', "\n", "数据", "é", "\\"] * 30
    raw = "".join(event(chunk(told(name, text))) + ": comment\n\n" for text in texts) + END
    field = "content" if name == "content" else "reasoning"
    with patch("pipeline.proof.wire.completion.orjson.loads", wraps=json.loads) as loads:
        completion = completion_of_sse(raw)

    assert tuple(Delta(field, text) for text in texts) == completion.deltas  # type: ignore[arg-type]
    assert loads.call_count < 6 + texts.count('q"q') + texts.count("\n") + texts.count("\\")


def test_texts_of_neighbouring_chunks_stay_apart() -> None:
    """Quotation marks and backslashes at the ends of texts, which are read many at once."""
    texts = ['"', "\\", '\\"', '","', "\\\\", '"]', ",", 'a"', '"a', "\n", "\u2028", "é"] * 20
    raw = "".join(event(chunk({"content": text})) for text in ["first", *texts]) + END

    assert in_full(raw) == read(raw)
    assert "".join(["first", *texts]) == completion_of_sse(raw).content


def test_escaped_halves_are_read_in_linear_time() -> None:
    """Each half pair ends a run of chunks, and what comes after it must not be looked at again and again."""
    pair = event(chunk({"content": "x"})).replace("x", "\\ud83d") + event(chunk({"content": "x"})).replace(
        "x", "\\ude00"
    )
    raw = event(chunk({"content": "So"})) + pair * 500 + END

    assert "So" + "😀" * 500 == completion_of_sse(raw).content


def test_chunks_that_always_differ_cost_a_few_frames_and_no_more() -> None:
    frames = Frames()
    for created in range(1000):
        value = chunk({"content": "a"}, created=created)
        frames.learn(json.dumps(value), value, Delta("content", "a"))
    before = frames.known
    frames.learn(json.dumps(chunk({"content": "b"})), chunk({"content": "b"}), Delta("content", "b"))

    assert before == frames.known
