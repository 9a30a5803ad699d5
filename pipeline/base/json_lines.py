"""JSON lines read fast and strictly, and written.

Guarantees: the fast reader, `object_of`, accepts what `strict_object` accepts, and refuses in the same words. Where it
cannot be sure of a line (another encoding, half a surrogate pair, a key that may be repeated), the strict one reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isinf
from typing import NoReturn

import orjson

from pipeline.records import Json, JsonObject, Reason, RefusedError

LONGEST_LINE = 64 * 1024 * 1024
MOST_NESTED = 200
"""Levels of objects and lists. Readers stop at about 1,000 and writers earlier, so some values could be read and not
be written again."""

_STREAM, _DONE = b'"sse":', b"[DONE]"
_TAIL = 512
_TRIES = 4
_WHOLE = 2.0**63
"""The fast reader makes a float of a whole number beyond 64 bits, so the strict one reads such a line."""


def object_of(raw: bytes) -> dict[str, Json]:
    """Return a line's JSON object. Raises RefusedError(MALFORMED_INPUT)."""
    thin, stream = _without_stream(raw)
    try:
        value: Json = orjson.loads(thin)
    except orjson.JSONDecodeError:
        return strict_object(raw)
    if isinstance(value, dict) and _writes_keys_once(thin, _count_keys(value)):
        if stream is not None:
            value["sse"] = stream
        return value
    return strict_object(raw)


def _without_stream(raw: bytes) -> tuple[bytes, str | None]:
    """Return the line with an empty `sse`, and that text.

    Most of such a line is one text, which need not be searched for keys. Only done where the text is the line's own:
    no object but the line ends after it. A complete stream says so at its end, so the check is cheap.
    """
    key = raw.find(_STREAM) if raw.find(_DONE, -_TAIL) >= 0 else -1
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


def _writes_keys_once(raw: bytes, keys: int) -> bool:
    """Whether the line writes just `keys` keys; False where unsure.

    Every written key has a colon of its own. Colons in text come on top; they do not count where they follow no
    quotation mark, or one that a backslash makes text. But a key may end with a backslash, itself written as two.
    """
    if raw.count(b":") == keys:
        return True
    line = raw.strip()
    if b"\t" in line or b"\n" in line or b"\r" in line or b" :" in line:
        return False
    written = line.count(b'":')
    if written != keys and b'\\\\":' not in line:
        written -= line.count(b'\\":')
    return written == keys


def _count_keys(value: Json) -> int:
    """Count keys at every depth; -1 for a doubtful number.

    A line that writes more keys than this may name one twice. A number is doubtful where the fast reader may have
    changed it.
    """
    count, containers = 0, [value]
    for container in containers:  # which grows in the loop
        if isinstance(container, dict):
            count += len(container)
            inner: Iterable[Json] = container.values()
        else:
            inner = container if isinstance(container, list) else ()
        for item in inner:
            kind = type(item)
            if kind is dict or kind is list:
                containers.append(item)
            elif kind is float and abs(item) >= _WHOLE:  # type: ignore[arg-type]  # a float, by the line above
                return -1
    return count


def strict_object(text: str | bytes) -> dict[str, Json]:
    """Parse one JSON object without NaN or repeated keys.

    Raises RefusedError(MALFORMED_INPUT).

    >>> strict_object('{"id": "a", "n": 1}')
    {'id': 'a', 'n': 1}
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        malformed("the JSON is nested too deeply to read")
    except UnicodeDecodeError as error:
        malformed(f"not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}")
    except ValueError as error:
        malformed(f"not JSON: {error}")
    if not isinstance(value, dict):
        malformed(f"must be a JSON object, is {json_kind(value)}")
    return value


def foreign_json(raw: bytes | str) -> Json:
    """Parse the JSON of another program, of any shape.

    Raises ValueError for what is no JSON, and for what is nested deeper than `MOST_NESTED`: whoever walks or prints the
    value may recurse.
    """
    try:
        value: Json = json.loads(raw)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply to read") from None
    try:
        require_shallow(value)
    except RefusedError as error:
        raise ValueError(error.refusal.detail) from None
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
    return value


def _finite(number: str) -> float:
    value = float(number)
    if isinf(value):
        raise ValueError(f"{number[:20]} is beyond every number that can be written again")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def require_shallow(value: Json) -> None:
    """Refuse a value that is nested deeper than `MOST_NESTED`.

    Raises RefusedError(MALFORMED_INPUT).
    """
    containers = [value]
    for _ in range(MOST_NESTED):
        inner = (
            each.values() if isinstance(each, dict) else each for each in containers if isinstance(each, dict | list)
        )
        containers = [item for items in inner for item in items if isinstance(item, dict | list)]
    if containers:
        malformed(f"the JSON is nested too deeply, over {MOST_NESTED} objects and lists in one another")


def json_kind(value: Json) -> str:
    return {bool: "a boolean", list: "a list", dict: "an object", str: "a string", type(None): "null or absent"}.get(
        type(value), "a number"
    )


def malformed(detail: str, field: str | None = None) -> NoReturn:
    raise RefusedError(Reason.MALFORMED_INPUT, detail, field=field)


def line_of(value: object) -> bytes:
    """Return one line of JSON in UTF-8; tuples become lists."""
    try:
        return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # A refused line may carry half a surrogate pair in its id, which has no UTF-8: it becomes an escape.
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def canonical(body: JsonObject) -> bytes:
    """Serialise a value for identities and digests over it.

    Sorted keys, no spaces, ASCII.

    >>> canonical({"b": 1, "a": [2]})
    b'{"a":[2],"b":1}'
    """
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
