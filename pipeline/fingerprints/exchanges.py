"""Recorded exchanges with hosted APIs, one JSON object a line, and what each copy can still testify to.

Guarantees: a line that is no exchange is told with its number and loses no other; a copy that somebody edited testifies
to nothing, and one that was written anew to nothing that writing anew can change. Keys: id, fidelity, endpoint,
provider, model, status, stream, request, body as sent; others (source, headers) are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.base.json_lines import object_of
from pipeline.proof.wire.sse import sse_data
from pipeline.records import Json, JsonObject, RefusedError


class Fidelity(StrEnum):
    """Something that a copy of an answer may still show as it was sent."""

    TEXT = "text"
    SPACE = "space"
    DELTAS = "deltas"
    CALL_IDS = "call_ids"
    ARGUMENTS = "arguments"


WHOLE = frozenset(Fidelity)
_STRINGS = frozenset({Fidelity.TEXT, Fidelity.CALL_IDS})

CARRIES: Mapping[tuple[str, bool], frozenset[Fidelity]] = {
    ("verbatim", False): WHOLE,
    ("verbatim", True): WHOLE,
    ("verbatim streams, JSON re-keyed", False): _STRINGS,
    ("verbatim streams, JSON re-keyed", True): WHOLE,
    ("JSON re-serialised, SSE verbatim", False): _STRINGS,
    ("JSON re-serialised, SSE verbatim", True): WHOLE,
    ("keys sorted, ids redacted", False): frozenset({Fidelity.TEXT}),
    ("keys sorted, ids redacted", True): frozenset({Fidelity.TEXT, Fidelity.DELTAS}),
}
"""By fidelity and whether it was a stream. Any other fidelity (`values edited`, `partly hand-written`) carries nothing.

Whoever writes JSON anew keeps what a string says, but may have trimmed it, or parsed the arguments in it: such a copy
has a say in counts, where a text that is not whole closes nothing, and none in white space.
"""


class ExchangesError(Exception):
    """A file of exchanges that cannot be read, or holds none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer. `carries` is what the copy can testify to."""

    id: str
    carries: frozenset[Fidelity]
    fidelity: str
    endpoint: str
    provider: str
    model: str
    status: int
    stream: bool
    request: JsonObject | None
    body: str

    def objects(self) -> Iterator[JsonObject]:
        """The JSON objects of the answer: its body, or each event that is one."""
        try:
            for text in sse_data(self.body) if self.stream else (self.body,):
                value = _object(text)
                if value is not None:
                    yield value
        except RefusedError:
            return


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no exchange, and why."""

    line: int
    why: str


def _object(text: str) -> JsonObject | None:
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_exchanges(path: Path) -> Iterator[Exchange | BadLine]:
    """Every line that is not blank, in order; ExchangesError where there is no file."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield _read(raw, number)
    except OSError as error:
        message = f"{path}: no exchanges can be read there ({error.strerror}). Name a file with one exchange a line"
        raise ExchangesError(f"{message}.") from None


def _read(raw: bytes, number: int) -> Exchange | BadLine:
    try:
        return exchange_of(object_of(raw))
    except RefusedError as error:
        return BadLine(number, error.refusal.detail)
    except RecursionError:
        return BadLine(number, "the line is nested too deeply")
    except ValueError as error:
        return BadLine(number, str(error))


_KINDS: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "fidelity": (str,),
    "endpoint": (str, type(None)),
    "provider": (str, type(None)),
    "model": (str, type(None)),
    "status": (int,),
    "stream": (bool,),
    "request": (dict, type(None)),
    "body": (str,),
}


def exchange_of(line: JsonObject) -> Exchange:
    """The exchange that an object in the schema is. Raises ValueError naming the key that is absent or another kind."""
    for key, kinds in _KINDS.items():
        if key not in line:
            raise ValueError(f"the key {key!r} is absent; an exchange has {', '.join(_KINDS)}")
        if not isinstance(line[key], kinds) or (key == "status" and isinstance(line[key], bool)):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ValueError(f"{key} is {type(line[key]).__name__}, not {wanted}")
    fidelity, stream, request = str(line["fidelity"]), line["stream"] is True, line["request"]
    return Exchange(
        id=str(line["id"]),
        carries=CARRIES.get((fidelity, stream), frozenset()),
        fidelity=fidelity,
        endpoint=str(line["endpoint"] or ""),
        provider=str(line["provider"] or ""),
        model=str(line["model"] or ""),
        status=int(str(line["status"])),
        stream=stream,
        request=request if isinstance(request, dict) else None,
        body=str(line["body"]),
    )
