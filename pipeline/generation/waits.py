"""How long a provider asks to wait, read off an answer that turned a request away.

Guarantees: what names no wait, or a wait that is no number, gives None; no header and no body makes anything raise.
"""

from __future__ import annotations

import email.utils
import json
import math
from datetime import UTC, datetime

from pipeline.generation.engines.openrouter import Answer


def named_wait(answer: Answer, now: datetime | None = None) -> float | None:
    """Seconds that the provider asks to wait, None where it names none.

    Retry-After is seconds or a date (RFC 9110, 10.2.3); X-RateLimit-Reset is milliseconds since 1970 (OpenRouter), in
    the headers or in the error's `metadata.headers`.
    """
    moment = now or datetime.now(UTC)
    waits = [_retry_after(answer.retry_after, moment)]
    waits += [_reset(text, moment) for text in (answer.rate_limit_reset, _reset_in_body(answer.raw))]
    return max((wait for wait in waits if wait is not None), default=None)


def _retry_after(text: str | None, now: datetime) -> float | None:
    if text is None:
        return None
    if (seconds := _number(text)) is not None:
        return max(seconds, 0.0)
    try:
        when = email.utils.parsedate_to_datetime(text)
        return max((when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def _reset(text: str | None, now: datetime) -> float | None:
    milliseconds = None if text is None else _number(text)
    return None if milliseconds is None else max(milliseconds / 1000 - now.timestamp(), 0.0)


def _reset_in_body(raw: bytes) -> str | None:
    try:
        found = json.loads(raw)["error"]["metadata"]["headers"]["X-RateLimit-Reset"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
