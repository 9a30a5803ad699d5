"""What is a loop at the end of a text, and what only looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generation.breaker import LEAST, LONGEST, TAIL, TIMES, is_loop


@pytest.mark.parametrize(
    "text",
    [
        " " * 240,
        "\n" * 4096,
        "Let me think. " + "Wait, no. " * 40,
        "A" * 5000 + "the same long sentence comes again and again, " * 12,
        "So: " + "好的，" * 100,
        ("x" * 255 + "y") * 6,
    ],
)
def test_a_phrase_said_over_and_over_at_the_end_is_a_loop(text: str) -> None:
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " " * 239,
        "Wait, no. " * 40 + "Here is the answer: 42.",
        "".join(f"{number}. item\n" for number in range(400)),
        "the same long sentence of many words, said five times only and no more than that, " * 5,
        ("x" * 256 + "y") * 7,
        "".join(chr(0x4E00 + number) for number in range(3000)),
    ],
)
def test_an_end_that_differs_is_no_loop(text: str) -> None:
    assert not is_loop(text)


@given(
    st.text("ab", max_size=12), st.text("abc", min_size=1, max_size=70), st.integers(1, 60), st.text("a", max_size=2)
)
def test_a_loop_is_found_exactly_where_its_definition_holds(lead: str, phrase: str, times: int, end: str) -> None:
    text = lead + phrase * times + end
    tail = text[-TAIL:]
    periods = range(1, LONGEST + 1)
    covered = {period: covers(tail, period) for period in periods}

    assert is_loop(text) == any(length >= max(LEAST, TIMES * period) for period, length in covered.items())


def covers(text: str, period: int) -> int:
    """How much of the end of the text repeats with the period."""
    length = min(period, len(text))
    while length < len(text) and text[-length - 1] == text[-length - 1 + period]:
        length += 1
    return length
