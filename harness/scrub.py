"""What must not lie in a cassette, and how it is taken out: keys, cookies, users, organisations, upstream's raw errors.

Guarantees: only headers on a short list are kept, whatever their case; in bodies and addresses every secret that a rule
knows is replaced by one mark, byte for byte elsewhere, in requests as in answers. Scrubbing twice changes nothing, so a
scrubbed recording still matches its request. `secrets_in` looks again, also behind escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

MARK: Final = "[SCRUBBED]"

KEPT_REQUEST: Final = frozenset({"accept", "content-type", "x-openrouter-cache"})
KEPT_RESPONSE: Final = frozenset(
    {
        *("content-type", "retry-after", "x-generation-id", "x-openrouter-cache-status"),
        *("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
    }
)
"""What our code reads. A list of what to drop would lack the next provider's header; dates and rays are volatile."""

PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "OpenRouter key": r"sk-or-[a-z0-9_-]{8,}",
        "API key": r"(?<![a-z0-9])sk-(?=[a-z_-]*\d)[a-z0-9_-]{16,}",
        "Hugging Face token": r"(?<![a-z0-9])hf_[a-z0-9]{16,}",
        "GitHub token": r"(?<![a-z0-9])gh[pousr]_[a-z0-9]{20,}",
        "bearer token": r"bearer +(?=[a-z._~+/=-]*\d)[a-z0-9._~+/=-]{12,}",
        "signed token": r"eyJ[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}",
        "user id": r"(?<![a-z0-9])user_(?=[a-z]*\d)[a-z0-9]{20,}",
        "organisation id": r"(?<![a-z0-9])org[-_](?=[a-z]*\d)[a-z0-9]{16,}",
    }.items()
}
"""Shapes that are secrets wherever they stand. Each asks for a digit or a prefix that prose does not have."""

_NAMES = "|".join(
    [
        *("authorization", "proxy-authorization", "(?:set-)?cookie", "(?:x-)?api[-_]?key", "access[-_]?token"),
        *("user[-_]?id", "org(?:anization)?[-_]?id", "team[-_]?id"),
    ]
)
FIELD: Final = re.compile(rf'(?<!\\)"(?:{_NAMES})"\s*:\s*(?=["\d-])', re.IGNORECASE)
"""JSON members that are secrets by name, where their value is text or a number; a schema of that name has an object."""

RAW: Final = re.compile(r'(?<!\\)"raw"\s*:\s*(?=["{\[])')
"""`error.metadata.raw`: what upstream said, which has held team and key ids. In answers only; text there is quoted."""

_QUERY: Final = re.compile(r"((?:^|&)(?:key|api_?key|access_?token|token)=)[^&]*", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\u00([2-7][0-9a-f])", re.IGNORECASE)


def scrub_headers(headers: Mapping[str, Sequence[str]], kept: frozenset[str]) -> dict[str, list[str]]:
    """The headers that are kept, in lower case and in order, their values scrubbed."""
    lowered = {name.lower(): values for name, values in headers.items()}
    return {name: [_scrub(value) for value in lowered[name]] for name in sorted(lowered) if name in kept}


def scrub_body(body: bytes, *, answer: bool) -> bytes:
    """`body` with its secrets replaced. Bytes beyond ASCII are untouched, whatever their encoding."""
    text = body.decode("latin-1")
    for rule in (FIELD, RAW) if answer else (FIELD,):
        text = "".join(_marked(text, rule))
    return _scrub(text).encode("latin-1")


def scrub_uri(uri: str) -> str:
    """The address without user, password, and keys in its query."""
    parts = urlsplit(uri)
    query = _scrub(_QUERY.sub(rf"\1{MARK}", parts.query))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], _scrub(parts.path), query, ""))


def secrets_in(data: bytes, *, answer: bool = True) -> list[str]:
    """What a scan of one body, header or address finds, in words that do not repeat the secret."""
    text = data.decode("latin-1")
    found = [name for name, rule in PATTERNS.items() if any(rule.search(guise) for guise in _guises(text))]
    for rule in (FIELD, RAW) if answer else (FIELD,):
        found += [f"the field {text[start:stop].split(':')[0]}" for start, stop, _ in _values(text, rule)]
    return found


def _scrub(text: str) -> str:
    for rule in PATTERNS.values():
        text = rule.sub(MARK, text)
    return text


def _marked(text: str, rule: re.Pattern[str]) -> Iterator[str]:
    position = 0
    for _, start, stop in _values(text, rule):
        yield text[position:start]
        yield f'"{MARK}"'
        position = stop
    yield text[position:]


def _values(text: str, rule: re.Pattern[str]) -> Iterator[tuple[int, int, int]]:
    """Where the member starts, its value starts and its value stops, for each that is not scrubbed yet."""
    position = 0
    while (match := rule.search(text, position)) is not None:
        position = match.end()
        try:
            value, stop = json.JSONDecoder(strict=False).raw_decode(text, match.end())
        except (ValueError, RecursionError):
            stop, value = len(text), None  # cut off in the middle: all that is left of it goes
        if value != MARK:
            yield match.start(), match.end(), stop
        position = stop


def _guises(text: str) -> Iterator[str]:
    """The text, and what it would be with its percent signs or JSON escapes undone."""
    yield text
    if "%" in text:
        yield unquote(text)
    if "\\u00" in text:
        yield _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
