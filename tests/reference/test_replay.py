"""Recorded answers of OpenRouter through the real client: none crashes, none is lost without a word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.measures.replay import FAILURES, RecordedAnswer, Replayed, recorded_in, replay

EACH = 3
MARKS = ('"error"', '"finish_reason":null,"native_finish_reason":null,"message"', '"finish_reason": null')
"""Every third is replayed, and all that are no plain answer."""


@pytest.fixture(scope="module")
def found(shared: Path) -> list[RecordedAnswer]:
    every = [one for one in recorded_in(shared / "recordings" / "exchanges.jsonl") if one.is_openrouter]
    return [
        one
        for number, one in enumerate(every)
        if number % EACH == 0 or one.exchange.status != 200 or any(mark in one.exchange.body for mark in MARKS)
    ]


@pytest.fixture(scope="module")
def came(found: list[RecordedAnswer]) -> list[Replayed]:
    return replay(found)


def test_no_answer_crashes_or_differs_or_is_empty_in_silence(came: list[Replayed]) -> None:
    assert [] == [one for one in came if one.came in FAILURES]


def test_every_kind_of_outcome_is_among_them(came: list[Replayed]) -> None:
    kinds = Counter(str(one.came) for one in came)

    assert {"parsed equal", "parsed equal, empty and said to be", "refused", "error status"} == set(kinds)
    assert kinds["parsed equal"] > 150


def test_whatever_the_sdk_reads_it_reads_as_a_plain_reading_does(came: list[Replayed]) -> None:
    assert [] == [one for one in came if one.sdk == "other"]
