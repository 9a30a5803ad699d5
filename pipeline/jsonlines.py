"""JSON lines read fast and strictly, and written.

Guarantees: what is accepted is what `pipeline.prompts.strict_object` accepts; a line that the fast reader cannot vouch
for (another encoding, half a surrogate pair, perhaps a key that stands twice) is read by the strict one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import orjson

from pipeline.prompts import strict_object
from pipeline.records import Json

_HOLDERS = frozenset({dict, list})
_STREAM = b'"sse":'
_TRIES = 4
_WHOLE = 2.0**63
"""The fast reader makes a float of a whole number beyond 64 bits: such a line is read by the strict one."""


def object_of(raw: bytes) -> dict[str, Json]:
    """The line's object; RefusedError(MALFORMED_INPUT) says what is wrong with it."""
    thin, stream = _without_stream(raw)
    try:
        value: Json = orjson.loads(thin)
    except orjson.JSONDecodeError:
        return strict_object(raw)
    if isinstance(value, dict) and _colons(thin) == _keys(value):
        if stream is not None:
            value["sse"] = stream
        return value
    return strict_object(raw)


def _without_stream(raw: bytes) -> tuple[bytes, str | None]:
    """The line with an empty `sse`, and what that said: most of such a line is one text, which needs no look at keys.

    Only where the text is the line's own: no object but the line ends after it.
    """
    key = raw.find(_STREAM)
    if key < 1 or raw[key - 1 : key] == b"\\":
        return raw, None
    start, stop = key + len(_STREAM), len(raw)
    start += raw[start : start + 1] == b" "
    if raw[start : start + 1] != b'"':
        return raw, None
    for _ in range(_TRIES):
        stop = raw.rfind(b'"', start, stop)
        if stop <= start or raw.count(b"}", stop) != 1:
            return raw, None
        try:
            text: str = orjson.loads(raw[start : stop + 1])
        except orjson.JSONDecodeError:
            continue
        return raw[:start] + b'""' + raw[stop + 1 :], text
    return raw, None


def _colons(raw: bytes) -> int | None:
    """How many keys the line writes, or more; None where only a parser can tell: white space before a colon."""
    line = raw.strip()
    return None if b"\t" in line or b"\n" in line or b"\r" in line or b" :" in line else line.count(b'":')


def _keys(value: Json) -> int:
    """How many keys the value holds at every depth: a line with more `":` than that may name one twice.

    -1 where the value holds a number that the fast reader may have changed.
    """
    found, left = 0, [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += len(item)
            inner: Iterable[Json] = item.values()
        elif isinstance(item, list):
            inner = item
        else:
            continue
        for one in inner:
            if type(one) in _HOLDERS:
                left.append(one)
            elif type(one) is float and abs(one) >= _WHOLE:
                return -1
    return found


def line_of(value: object) -> bytes:
    """One line of JSON in UTF-8; tuples are lists."""
    try:
        return orjson.dumps(value) + b"\n"
    except orjson.JSONEncodeError:
        return _escaped(value)


def _escaped(value: object) -> bytes:
    """The line with half surrogate pairs as escapes: a refused line may carry them in its id."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
