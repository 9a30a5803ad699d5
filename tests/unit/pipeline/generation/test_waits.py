"""The wait that a provider names, in every form that was recorded or is documented."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from pipeline.generation.engines.openrouter import HttpAnswer
from pipeline.generation.paid_client import retry_after_seconds

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
RESET = str(int(NOW.timestamp() * 1000) + 7500)
BODY = json.dumps({"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": RESET}}}}).encode()


@pytest.mark.parametrize(
    "retry_after, reset, raw, expected",
    [
        ("3", None, b"", 3.0),
        ("0.5", None, b"", 0.5),
        ("Mon, 30 Nov 2026 12:00:09 GMT", None, b"", 9.0),
        (None, RESET, b"", 7.5),
        (None, None, BODY, 7.5),
        ("20", RESET, BODY, 20.0),
        ("1", RESET, b"", 7.5),
        ("-4", None, b"", 0.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", None, b"", 0.0),
    ],
)
def test_the_longest_wait_that_is_named_counts(
    retry_after: str | None, reset: str | None, raw: bytes, expected: float
) -> None:
    assert expected == retry_after_seconds(HttpAnswer(429, raw, "", None, retry_after, reset), NOW)


@pytest.mark.parametrize("junk", ["", "soon", "nan", "inf", "1e999", "Mon, 99 Nov"])
@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"error":"no"}', b'{"error":{"metadata":null}}', b"[" * 100_000, b"\xff"]
)
def test_what_names_no_wait_names_none(junk: str, raw: bytes) -> None:
    assert retry_after_seconds(HttpAnswer(429, raw, "", None, junk, junk), NOW) is None


def test_a_date_that_no_clock_has_names_no_wait() -> None:
    far = "Mon, 01 Jan 2024 00:00:00 +99999999999999"

    assert retry_after_seconds(HttpAnswer(429, b"", "application/json", None, far), NOW) is None
