"""Text that is not ours is shown with its control characters escaped."""

from __future__ import annotations

import pytest

from pipeline.base.redaction import redact
from pipeline.base.screen import escaped


@pytest.mark.parametrize(
    "text, expected",
    [
        ("\x1b[2K\rallowed", "\\x1b[2K\\rallowed"),
        ("\x1b]8;;http://x\x07", "\\x1b]8;;http://x\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("one\ntwo\ttab", "one\\ntwo\\ttab"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("a\u200bb\u2028c\ufeffd\xade", "a\\u200bb\\u2028c\\ufeffd\\xade"),
        ("\ud800", "\\ud800"),
        ("naïve 中文 👩‍🚀"[:-2], "naïve 中文 👩"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(text: str, expected: str) -> None:
    assert expected == escaped(text)


def test_our_own_lines_stay_lines() -> None:
    assert "a\nb\\r" == escaped("a\nb\r", lines=True)


def test_what_a_provider_says_is_quoted_escaped() -> None:
    assert "No\\x1b[31m\\nallowed" == redact("No\x1b[31m\nallowed", 80)
