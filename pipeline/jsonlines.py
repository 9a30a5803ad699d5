"""JSON lines read fast and strictly, and written.

Guarantees: what is accepted is what `pipeline.prompts.strict_object` accepts; a line that the fast reader cannot vouch
for (another encoding, half a surrogate pair, perhaps a key that stands twice) is read by the strict one.
"""

from __future__ import annotations

import json
import re

import orjson

from pipeline.prompts import strict_object
from pipeline.records import Json

_HOLDERS = (dict, list)
_SPACED_COLON = re.compile(rb"[ \t\r\n]:")
_WHOLE = 2.0**63
"""The fast reader makes a float of a whole number beyond 64 bits: such a line is read by the strict one."""


def object_of(raw: bytes) -> dict[str, Json]:
    """The line's object; RefusedError(MALFORMED_INPUT) says what is wrong with it."""
    try:
        value: Json = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return strict_object(raw)
    if isinstance(value, dict) and raw.count(b'":') == _keys(value) and not _SPACED_COLON.search(raw):
        return value
    return strict_object(raw)


def _keys(value: Json) -> int:
    """How many keys the value holds at every depth: a line with more `":` than that may name one twice."""
    found, left = 0, [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += len(item)
            left += [inner for inner in item.values() if type(inner) in _HOLDERS]
            if any(type(inner) is float and abs(inner) >= _WHOLE for inner in item.values()):
                return -1
        elif isinstance(item, list):
            left += [inner for inner in item if type(inner) in _HOLDERS]
            if item and any(type(inner) is float and abs(inner) >= _WHOLE for inner in item):
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
