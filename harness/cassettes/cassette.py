"""A cassette on disk: where it comes from, then what went out and what came back, as YAML that people can read.

Guarantees: `dump_cassette(parse_cassette(text)) == text` for every text that `dump_cassette` wrote; a file is whole or
not there. Refuses to be written: nothing recorded, an answer of status 400 or above unless asked for, an empty body,
and anything that still looks like a secret.

Bodies in a cassette: parsed where that gives the exact bytes back, else raw text, else base64.

Guarantees: `restore(load(dump(store(body)))) == body` for any bytes, because every candidate form is put through YAML
and compared before it is taken. Nothing is normalised: a body that no style reproduces stays the text that it was.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

import yaml

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


Stored: TypeAlias = dict[str, Any]
"""One of `{json, style, before?, after?}`, `{sse: [events]}`, `{raw}` and `{base64}`."""

STYLES: Mapping[str, Callable[[Any], str]] = {
    "compact": partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    "spaced": partial(json.dumps, ensure_ascii=False),
    "compact ascii": partial(json.dumps, separators=(",", ":")),
    "spaced ascii": json.dumps,
    "indented": partial(json.dumps, ensure_ascii=False, indent=2),
}
"""How senders write JSON: OpenRouter, Python, Python told to be short, Python's default, people."""

SPACE = " \t\r\n"
DATA = "data: "
END = "\n\n"
UNSTORABLE = (yaml.YAMLError, ValueError, RecursionError, OverflowError)
"""What parsers and emitters raise for text that they cannot hold: lone surrogates, endless numbers, deep nesting."""


class Flow(dict[str, Any]):
    """A mapping that YAML writes on one line: an event of a stream."""


class FlowIds(list[int]):
    """A list that YAML writes on one line: token ids."""


class _Dumper(yaml.CSafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """libyaml's emitter, without anchors: equal events are written out."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


_MAP, _SEQ, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str"
_ENDLESS = 2**31 - 1
_Dumper.add_representer(Flow, lambda dumper, data: dumper.represent_mapping(_MAP, data, flow_style=True))
_Dumper.add_representer(FlowIds, lambda dumper, data: dumper.represent_sequence(_SEQ, data, flow_style=True))
_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(_STR, text, '"' if "\n" in text else None))
_MAP, _SEQ, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str"
_ENDLESS = 2**31 - 1


def dump(value: object) -> str:
    """YAML, one event a line, key order kept, never folded."""
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_ENDLESS)
    return text


def load(text: str) -> Any:  # noqa: ANN401 - whatever the YAML says; callers check its shape
    """Plain YAML, no tags that make objects."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def store(body: bytes) -> Stored:
    """The most readable form that gives `body` back."""
    return next(form for form in _forms(body) if _survives(form, body))


def restore(form: Mapping[str, Any]) -> bytes:
    """The bytes of a stored body. Raises ValueError, KeyError or TypeError for what is no stored body."""
    if "base64" in form:
        return base64.b64decode(form["base64"], validate=True)
    return _text(form).encode("utf-8")


def _text(form: Mapping[str, Any]) -> str:
    if "raw" in form:
        return str(form["raw"])
    if "sse" in form:
        return END.join(_event_text(event) for event in form["sse"])
    return f"{form.get('before', '')}{STYLES[form['style']](form['json'])}{form.get('after', '')}"


def _event_text(event: Mapping[str, Any]) -> str:
    return str(event["raw"]) if "raw" in event else DATA + STYLES[event["style"]](event["json"])


def _forms(body: bytes) -> Iterator[Stored]:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None:
        if (parsed := _parsed(text)) is not None:
            yield parsed
        if DATA in text:
            yield {"sse": [_event(piece) for piece in text.split(END)]}
        yield {"raw": text}
    yield {"base64": base64.b64encode(body).decode("ascii")}


def _parsed(text: str) -> Stored | None:
    """JSON with the white space round it, in the style that writes it so; keep-alives come before the JSON."""
    core = text.strip(SPACE)
    start = text.find(core)
    try:
        value = json.loads(core)
        style = next((name for name, write in STYLES.items() if write(value) == core), None)
    except UNSTORABLE:
        return None
    if style is None:
        return None
    space = {"before": text[:start], "after": text[start + len(core) :]}
    return {"json": value, "style": style, **{key: value for key, value in space.items() if value}}


def _event(piece: str) -> Flow:
    """One event of a stream: its JSON, or the piece as it stands (a comment, `[DONE]`, the empty end)."""
    parsed = _parsed(piece.removeprefix(DATA)) if piece.startswith(DATA) else None
    if parsed is not None and parsed.keys() == {"json", "style"} and _survives(parsed, piece[len(DATA) :].encode()):
        return Flow(parsed)
    return Flow(raw=piece)


def _survives(form: Stored, body: bytes) -> bool:
    try:
        return restore(load(dump(form))) == body
    except UNSTORABLE:
        return False
