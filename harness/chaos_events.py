"""An answer's bytes taken apart into events and put together again, for whoever damages them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""Damaged JSON has any shape."""

Edit: TypeAlias = Callable[[dict[str, Json], int], dict[str, Json]]


def is_stream(body: bytes) -> bool:
    return body.lstrip()[:1] in {b":", b"d"}


def events(body: bytes) -> list[bytes]:
    """The events of a stream without their blank lines; a body is one."""
    return [part for part in body.split(b"\n\n") if part] if is_stream(body) else [body]


def stream_of(parts: Sequence[bytes]) -> bytes:
    """The stream of events; a body that was one part stays as it is."""
    if not any(part.startswith((b":", b"data:")) for part in parts):
        return b"".join(parts)
    return b"".join(part + b"\n\n" for part in parts)


def edited(body: bytes, change: Edit) -> bytes:
    """The body, or every chunk of the stream, changed; the second argument counts the chunks."""
    if not is_stream(body):
        return _dumped(change(json.loads(body), 0))
    parts, count = events(body), 0
    for at, part in enumerate(parts):
        if part.startswith(b"data: {"):
            parts[at] = b"data: " + _dumped(change(json.loads(part[6:]), count))
            count += 1
    return stream_of(parts)


def usage_merged(body: bytes) -> bytes:
    """The stream with its usage on the finish chunk."""
    parts = events(body)
    told = [json.loads(part[6:]) if part.startswith(b"data: {") else {} for part in parts]
    at = next(number for number, chunk in enumerate(told) if chunk.get("usage"))
    last = next(number for number, chunk in enumerate(told) if _finish(chunk))
    parts[last] = b"data: " + _dumped({**told[last], "usage": told[at]["usage"]})
    del parts[at]
    return stream_of(parts)


def _finish(chunk: dict[str, Json]) -> Json:
    return next((choice.get("finish_reason") for choice in chunk.get("choices", [])), None)


def _dumped(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
