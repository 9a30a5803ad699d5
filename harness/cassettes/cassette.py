"""A cassette on disk: where it comes from, then what went out and what came back, as YAML that people can read.

Guarantees: `dump_cassette(parse_cassette(text)) == text` for every text that `dump_cassette` wrote; a file is whole or
not there. Refuses to be written: nothing recorded, an answer of status 400 or above unless asked for, an empty body,
and anything that still looks like a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import yaml

from harness.cassettes.cassette_body import Flow, FlowIds, dump, load, restore, store
from harness.cassettes.scrub import secrets_in
from pipeline.base.files import write_whole
from pipeline.records import Ids

VERSION = 1
ERROR_STATUS = 400
RECORD = "nox -s cassettes"
Headers = Mapping[str, list[str]]


class CassetteError(Exception):
    """A cassette that cannot be read, must not be written, or does not fit what is asked of it."""


@dataclass(frozen=True, slots=True)
class Oracle:
    """The true ids of an emulated answer, shapes [n]."""

    prompt_ids: Ids
    output_ids: Ids


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a recording comes from. `recorded_at` ends in Z; `digests` (emulator only) say when it is stale.

    `local` is an engine on the recorder's own machine; its version stands in `versions`.
    """

    recorded_at: str
    source: Literal["live", "emulator", "local"]
    route: str
    model: str
    stream: bool
    versions: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict)
    oracle: Oracle | None = None

    @property
    def recorded(self) -> datetime:
        """When, with its zone."""
        return datetime.fromisoformat(self.recorded_at)


@dataclass(frozen=True, slots=True)
class Interaction:
    """One request and its answer, scrubbed; bodies as bytes, content encodings undone."""

    method: str
    uri: str
    request_headers: Headers
    request_body: bytes
    status: int
    reason: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Cassette:
    """A whole recording."""

    provenance: Provenance
    interactions: tuple[Interaction, ...]


def dump_cassette(cassette: Cassette) -> str:
    """The file's text: provenance first, where the gate and the attestation look for it."""
    interactions = [_stored(each) for each in cassette.interactions]
    return dump({"provenance": _provenance(cassette.provenance), "version": VERSION, "interactions": interactions})


def parse_cassette(text: str) -> Cassette:
    """The cassette of a file's text. Raises CassetteError for anything else."""
    try:
        stored = load(text)
        if stored["version"] != VERSION:
            raise CassetteError(f"cassette version {stored['version']!r}, wanted {VERSION}. Run: {RECORD}")
        return Cassette(_read_provenance(stored["provenance"]), tuple(map(_interaction, stored["interactions"])))
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CassetteError(f"no readable cassette ({type(error).__name__}: {error}). Run: {RECORD}") from error


def read_cassette(path: Path) -> Cassette:
    """The cassette at `path`. Raises CassetteError, naming the file."""
    try:
        return parse_cassette(path.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteError(f"{path}: no cassette there ({error}). Run: {RECORD}") from error
    except CassetteError as error:
        raise CassetteError(f"{path}: {error}") from error


def save_cassette(path: Path, cassette: Cassette, *, errors_wanted: bool = False) -> None:
    """Write it, if it may be written. Raises CassetteError with every objection, OSError."""
    if found := [*objections(cassette, errors_wanted=errors_wanted)]:
        raise CassetteError(f"{path} was not written: {'; '.join(found)}")
    text = dump_cassette(cassette)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: _write(file, text))


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode("utf-8"))


def objections(cassette: Cassette, *, errors_wanted: bool) -> Iterator[str]:
    """What speaks against keeping a recording."""
    if not cassette.interactions:
        yield "nothing was recorded"
    for number, each in enumerate(cassette.interactions):
        if each.status >= ERROR_STATUS and not errors_wanted:
            yield f"answer {number} has the status {each.status}, and no error was asked for"
        if not each.body.strip():
            yield f"answer {number} has an empty body"
    yield from leaks(cassette)


def leaks(cassette: Cassette) -> Iterator[str]:
    """Every secret that is still there: where, and what kind."""
    for number, each in enumerate(cassette.interactions):
        parts: dict[str, tuple[bytes, bool]] = {
            "address": (each.uri.encode(), False),
            "request headers": (str(each.request_headers).encode(), False),
            "request body": (each.request_body, False),
            "answer headers": (str(each.headers).encode(), True),
            "answer body": (each.body, True),
        }
        for name, (data, answer) in parts.items():
            yield from (f"{name} of {number} holds a secret ({found})" for found in secrets_in(data, answer=answer))


def _provenance(provenance: Provenance) -> dict[str, Any]:
    entries: dict[str, Any] = {
        "recorded_at": provenance.recorded_at,
        "source": provenance.source,
        "route": provenance.route,
        "model": provenance.model,
        "stream": provenance.stream,
        "versions": dict(provenance.versions),
    }
    if provenance.digests:
        entries["digests"] = dict(provenance.digests)
    if provenance.oracle is not None:
        ids = {"prompt_ids": provenance.oracle.prompt_ids, "output_ids": provenance.oracle.output_ids}
        entries["oracle"] = {name: FlowIds(value) for name, value in ids.items()}
    return entries


def _read_provenance(entries: Mapping[str, Any]) -> Provenance:
    oracle = entries.get("oracle")
    if entries["source"] not in {"live", "emulator", "local"}:
        raise ValueError(f"source {entries['source']!r} is neither live nor emulator nor local")
    if datetime.fromisoformat(entries["recorded_at"]).tzinfo is None:
        raise ValueError(f"recorded_at {entries['recorded_at']!r} has no zone")
    return Provenance(
        recorded_at=entries["recorded_at"],
        source=cast("Literal['live', 'emulator', 'local']", entries["source"]),
        route=entries["route"],
        model=entries["model"],
        stream=entries["stream"],
        versions=entries["versions"],
        digests=entries.get("digests", {}),
        oracle=Oracle(tuple(oracle["prompt_ids"]), tuple(oracle["output_ids"])) if oracle else None,
    )


def _stored(each: Interaction) -> dict[str, Any]:
    request = {"method": each.method, "uri": each.uri, "headers": _headers(each.request_headers)}
    status = Flow(code=each.status, reason=each.reason)
    answer = {"status": status, "headers": _headers(each.headers), "body": store(each.body)}
    return {"request": {**request, "body": store(each.request_body)}, "response": answer}


def _headers(headers: Headers) -> dict[str, list[str]]:
    return {name: list(values) for name, values in headers.items()}


def _interaction(stored: Mapping[str, Any]) -> Interaction:
    request, answer = stored["request"], stored["response"]
    return Interaction(
        method=request["method"],
        uri=request["uri"],
        request_headers=request["headers"],
        request_body=restore(request["body"]),
        status=answer["status"]["code"],
        reason=answer["status"]["reason"],
        headers=answer["headers"],
        body=restore(answer["body"]),
    )
