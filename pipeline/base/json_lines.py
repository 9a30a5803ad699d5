"""JSON lines read fast and strictly, and written.

Guarantees: what is accepted is what `strict_object` accepts; a line that the fast reader cannot vouch
for (another encoding, half a surrogate pair, perhaps a key that stands twice) is read by the strict one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isinf
from typing import NoReturn

import orjson

from pipeline.records import Json, JsonObject, Reason, RefusedError

_STREAM, _DONE = b'"sse":', b"[DONE]"


_TAIL = 512


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
    if isinstance(value, dict) and _are_once(thin, _keys(value)):
        if stream is not None:
            value["sse"] = stream
        return value
    return strict_object(raw)


def _without_stream(raw: bytes) -> tuple[bytes, str | None]:
    """The line with an empty `sse`, and what that said: most of such a line is one text, which needs no look at keys.

    Only where the text is the line's own: no object but the line ends after it. A stream that came whole says so at its
    end, where a look costs nothing.
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


def _are_once(raw: bytes, keys: int) -> bool:
    """Whether the line, which holds `keys` keys, writes no more of them than that; False where only a parser can tell.

    Every key that is written has a colon of its own. Colons in text are more, and do not count where they follow no
    quotation mark, or one that a backslash makes text; but a key may end with a backslash, itself written as two.
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


def _keys(value: Json) -> int:
    """How many keys the value holds at every depth: a line that writes more than that may name one twice.

    -1 where the value holds a number that the fast reader may have changed.
    """
    found, holders = 0, [value]
    for holder in holders:  # which grow
        if isinstance(holder, dict):
            found += len(holder)
            inner: Iterable[Json] = holder.values()
        else:
            inner = holder if isinstance(holder, list) else ()
        for one in inner:
            kind = type(one)
            if kind is dict or kind is list:
                holders.append(one)
            elif kind is float and abs(one) >= _WHOLE:  # type: ignore[arg-type]  # a float, as was just seen
                return -1
    return found


def line_of(value: object) -> bytes:
    """One line of JSON in UTF-8; tuples are lists."""
    try:
        return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        return _escaped(value)


def _escaped(value: object) -> bytes:
    """The line with half surrogate pairs as escapes: a refused line may carry them in its id."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def canonical(body: JsonObject) -> bytes:
    """The one serialisation of a request that identities are taken over: sorted keys, no spaces, ASCII."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


LONGEST_LINE = 64 * 1024 * 1024


MOST_NESTED = 200
"""Objects and lists in one another. Readers stop at about 1,000, writers before that, so that some could be read and
not be written again."""


def strict_object(text: str | bytes) -> dict[str, Json]:
    """The JSON object that `text` (UTF-8) is; NaN and repeated keys are no JSON here.

    Raises RefusedError(MALFORMED_INPUT).
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


def require_shallow(value: Json) -> None:
    """Raises RefusedError(MALFORMED_INPUT) where the value is nested deeper than `MOST_NESTED`."""
    holders = [value]
    for _ in range(MOST_NESTED):
        inner = (one.values() if isinstance(one, dict) else one for one in holders if isinstance(one, dict | list))
        holders = [one for each in inner for one in each if isinstance(one, dict | list)]
    if holders:
        malformed(f"the JSON is nested too deeply, over {MOST_NESTED} objects and lists in one another")


def json_kind(value: Json) -> str:
    return {bool: "a boolean", list: "a list", dict: "an object", str: "a string", type(None): "null or absent"}.get(
        type(value), "a number"
    )


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


def malformed(detail: str, field: str | None = None) -> NoReturn:
    raise RefusedError(Reason.MALFORMED_INPUT, detail, field=field)
