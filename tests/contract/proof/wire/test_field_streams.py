"""Streams of the field: what says nothing contradicts nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.proof.wire.completion import completion_of_sse
from pipeline.records import Reason, RefusedError

pytestmark = pytest.mark.contract

DONE = "data: [DONE]\n\n"


def chunk(identity: str = "g-1", *, usage: object = None, model: str = "m", **choice: object) -> str:
    choices = [{"index": 0, "delta": {}, **choice}]
    body = {"id": identity, "model": model, "provider": "P", "choices": choices, "usage": usage}
    return f"data: {json.dumps(body)}\n\n"


TEXT = chunk(delta={"role": "assistant", "content": "Hi"})
END = chunk(finish_reason="stop")


@pytest.mark.parametrize("tail", [DONE, DONE * 2, ": keep-alive\n\n" + DONE, "data: : PROCESSING\n\n"])
def test_done_may_be_said_again(tail: str) -> None:
    """A gateway adds its own behind its upstream's."""
    assert "Hi" == completion_of_sse(TEXT + END + DONE + tail).content


def test_text_after_done_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        completion_of_sse(TEXT + END + DONE + TEXT + DONE)

    assert Reason.STREAM_INCONSISTENT is refused.value.refusal.reason


@pytest.mark.parametrize("empty", [{"delta": {"role": "assistant", "content": ""}}, {"delta": {}}, {"delta": None}])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_chunk_identifies_nothing(empty: dict[str, Any], place: int) -> None:
    parts = [TEXT, END, ""]
    parts.insert(place, chunk("g-2", model="other", **empty))
    found = completion_of_sse("".join(parts) + DONE)

    assert ("g-1", "m", "Hi") == (found.generation_id, found.model, found.content)


def test_names_that_only_empty_chunks_say_are_kept() -> None:
    text = chunk("", model="", delta={"content": "Hi"})

    assert "m" == completion_of_sse(chunk() + text + END.replace('"m"', '""') + DONE).model


def test_two_generations_are_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        completion_of_sse(TEXT + chunk("g-2", delta={"content": "!"}) + END + DONE)

    assert Reason.STREAM_INCONSISTENT is refused.value.refusal.reason
