"""Read recorded exchanges with hosted APIs, one a line.

Guarantees: a line that is no exchange is reported with its number and does not affect the others. Keys that are read:
id, fidelity, endpoint, provider, model, status, stream, request, body (as sent); others (source, headers) are ignored.
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
    """Part of an answer that a copy may show unaltered."""

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
"""What a copy carries, by the line's `fidelity` and whether it is a stream.

Any other fidelity (`values edited`, `partly hand-written`) carries nothing. A program that writes JSON again keeps what
a string says, but may have trimmed it, or parsed the arguments in it. Such a copy has a vote on counts, where a text
that is not whole closes nothing, and none on white space.
"""


class ExchangesError(Exception):
    """A file of exchanges cannot be read, or holds none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, as the copy shows them."""

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
        """Yield the answer's JSON objects: its body, or its events.

        Texts that are no JSON object are left out.
        """
        try:
            for text in sse_data(self.body) if self.stream else (self.body,):
                try:
                    value: Json = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
        except RefusedError:
            return


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no exchange, and why."""

    line: int
    why: str


def read_exchanges(path: Path) -> Iterator[Exchange | BadLine]:
    """Yield every line that is not blank, in order.

    Raises ExchangesError where the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    line: Exchange | BadLine = exchange_of(object_of(raw))
                except RefusedError as error:
                    line = BadLine(number, error.refusal.detail)
                except RecursionError:
                    line = BadLine(number, "the line is nested too deeply")
                except ValueError as error:
                    line = BadLine(number, str(error))
                yield line
    except OSError as error:
        message = f"{path}: no exchanges can be read there ({error.strerror}). Name a file with one exchange a line"
        raise ExchangesError(f"{message}.") from None


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
    """Return the exchange that a line's object holds.

    Raises ValueError naming a key that is absent or has a value of another type.
    """
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
