"""Find keys by their shape, plain or encoded.

Guarantees: what is found is named by its kind, never quoted. Behind an encoding a key counts only by a mark of its
issuer, in its own case: decoded noise says anything else sooner or later. Not found: a key in two texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.base.decodings import decodings
from pipeline.base.prompts import texts_of
from pipeline.base.redaction import PATTERNS, issued_in
from pipeline.records import Prompt

WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "cookie": ("ookie", "OOKIE"),
    "credentials": ("uthorization", "UTHORIZATION"),
    "bearer token": ("earer", "EARER"),
    "password in an address": ("@",),
    "key in an address": ("&", "?"),
}
"""Kinds that are known by what stands around them, and what such text has. Ids of users and houses are no keys."""


def secret_of(prompt: Prompt) -> tuple[str, str] | None:
    """Return the first key in a prompt: kind and place.

    In messages and tools alike, keys of objects too.
    """
    return next(((kind, place) for place, text in texts_of(prompt) for kind in shapes_in(text)), None)


def shapes_in(text: str) -> Iterator[str]:
    """Yield the kinds of keys that a text holds.

    Plainly first, then those that show once encodings are undone.
    """
    yield from issued_in(text)
    for kind, near in WRITTEN.items():
        if any(each in text for each in near) and PATTERNS[kind].search(text):
            yield kind
    yield from encoded_shapes_in(text)


def encoded_shapes_in(text: str, keys: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the kinds of keys behind encodings alone.

    Among them the `keys` in use, which need no shape.
    """
    for decoded in decodings(text):
        yield from (f"{kind}, encoded" for kind in issued_in(decoded))
        if keys and any(key.lower() in decoded.lower() for key in keys):
            yield "the key in use, encoded"
