"""Texts that stand in a body in pieces: deltas of a stream, tokens of a list. A secret may be whole only in the reader.

Guarantees: all strings at one place of the events, or of the items of a list, are put together in order, whatever the
place is called.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipeline.records import Json

DATA = "data:"


def joined(body: str) -> Iterator[str]:
    """Each text that a reader would put together of two pieces or more."""
    pieces: dict[str, list[str]] = {}
    for value in _values(body):
        for place, text in _leaves(value, "", ""):
            pieces.setdefault(place, []).append(text)
    yield from ("".join(texts) for texts in pieces.values() if len(texts) > 1)


def _values(body: str) -> Iterator[Json]:
    lines = [line.removeprefix(DATA) for line in body.splitlines() if line.startswith(DATA)]
    for text in lines or [body]:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue


def _leaves(value: Json, exact: str, loose: str) -> Iterator[tuple[str, str]]:
    """Each string with its place, and once more with its place whatever the item of a list."""
    if isinstance(value, str):
        yield f"exact {exact}", value
        if loose != exact:
            yield f"loose {loose}", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{exact}/{key}", f"{loose}/{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            index = item.get("index", position) if isinstance(item, dict) else position
            yield from _leaves(item, f"{exact}/{index}", f"{loose}/*")
