"""A cassette on disk: provenance, requests, answers, as readable YAML.

Guarantees: `dump_cassette(parse_cassette(text)) == text` for every text that `dump_cassette` wrote; a file is whole or
absent. Refuses to be written: nothing recorded, an answer of status 400 or above unless asked for, an empty body, and
anything that still looks like a secret.

A body is parsed JSON where that gives the exact bytes back, else raw text, else base64: every candidate form is put
through YAML and compared before it is taken. Nothing is normalised.
"""

from __future__ import annotations

import base64
import json
import re
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
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
Headers = Mapping[str, list[str]]


class CassetteError(Exception):
    """A cassette that is unreadable, unwritable, or does not fit."""


@dataclass(frozen=True, slots=True)
class Oracle:
    """The true ids of an emulated answer, shapes [n]."""

    prompt_ids: Ids
    output_ids: Ids


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a recording comes from.

    `recorded_at` ends in Z; `digests` (emulator only) say when it is stale. `local` is an engine on the recorder's own
    machine; its version stands in `versions`.
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
        """Return the time of recording, with its zone."""
        return datetime.fromisoformat(self.recorded_at)


@dataclass(frozen=True, slots=True)
class Interaction:
    """One request and its answer, scrubbed.

    Bodies are bytes, with content encodings undone.
    """

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
    provenance: Provenance
    interactions: tuple[Interaction, ...]


def dump_cassette(cassette: Cassette) -> str:
    """Return the file's text.

    Provenance comes first, where the gate and the attestation look for it.
    """
    interactions = [stored_interaction(each) for each in cassette.interactions]
    return dump(
        {"provenance": provenance_entries(cassette.provenance), "version": VERSION, "interactions": interactions}
    )


def parse_cassette(text: str) -> Cassette:
    """Return the cassette of a file's text.

    Raises CassetteError for anything else.
    """
    try:
        stored = load(text)
        if stored["version"] != VERSION:
            raise CassetteError(f"cassette version {stored['version']!r}, wanted {VERSION}. Run: {RECORD}")
        return Cassette(read_provenance(stored["provenance"]), tuple(map(read_interaction, stored["interactions"])))
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise CassetteError(f"no readable cassette ({type(error).__name__}: {what}). Run: {RECORD}") from error


def read_cassette(path: Path) -> Cassette:
    """Return the cassette at `path`.

    Raises CassetteError, naming the file.
    """
    try:
        return parse_cassette(path.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteError(f"{path}: no cassette there ({error}). Run: {RECORD}") from error
    except CassetteError as error:
        raise CassetteError(f"{path}: {error}") from error


def save_cassette(path: Path, cassette: Cassette, *, errors_wanted: bool = False) -> None:
    """Write a cassette that may be written.

    Raises CassetteError with every objection, OSError.
    """
    if found := [*objections(cassette, errors_wanted=errors_wanted)]:
        raise CassetteError(f"{path} was not written: {'; '.join(found)}")
    text = dump_cassette(cassette)
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8"))

    write_whole(path, write)


def objections(cassette: Cassette, *, errors_wanted: bool) -> Iterator[str]:
    """Yield what speaks against keeping a recording."""
    if not cassette.interactions:
        yield "nothing was recorded"
    for number, each in enumerate(cassette.interactions):
        if each.status >= ERROR_STATUS and not errors_wanted:
            yield f"answer {number} has the status {each.status}, and no error was asked for"
        if not each.body.strip():
            yield f"answer {number} has an empty body"
        for what, body in (("request", each.request_body), ("answer", each.body)):
            if not _is_text(body):
                yield f"{what} {number} is no text, so its encoding was not undone and no secret in it can be seen"
    yield from leaks(cassette)


def _is_text(body: bytes) -> bool:
    """Return whether a body is UTF-8 without control characters.

    JSON and event streams are. What is still compressed is not.
    """
    try:
        return not _CONTROL.search(body.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def leaks(cassette: Cassette) -> Iterator[str]:
    """Yield every secret that is left: where, what kind."""
    for number, each in enumerate(cassette.interactions):
        parts: dict[str, tuple[bytes, bool]] = {
            "address": (each.uri.encode(), False),
            "request headers": (str(each.request_headers).encode(), False),
            "request body": (each.request_body, False),
            "answer status": (each.reason.encode("utf-8", "surrogatepass"), True),
            "answer headers": (str(each.headers).encode(), True),
            "answer body": (each.body, True),
        }
        for name, (data, answer) in parts.items():
            yield from (f"{name} of {number} holds a secret ({found})" for found in secrets_in(data, answer=answer))


def provenance_entries(provenance: Provenance) -> dict[str, Any]:
    """Return the provenance as YAML holds it."""
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


def read_provenance(entries: Mapping[str, Any]) -> Provenance:
    """Return the provenance that YAML holds.

    Raises ValueError for an unusable one.
    """
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


def stored_interaction(each: Interaction) -> dict[str, Any]:
    """Return an interaction as YAML holds it."""
    request = {"method": each.method, "uri": each.uri, "headers": _headers(each.request_headers)}
    status = Flow(code=each.status, reason=each.reason)
    answer = {"status": status, "headers": _headers(each.headers), "body": store(each.body)}
    return {"request": {**request, "body": store(each.request_body)}, "response": answer}


def _headers(headers: Headers) -> dict[str, list[str]]:
    return {name: list(values) for name, values in headers.items()}


def read_interaction(stored: Mapping[str, Any]) -> Interaction:
    """Return the interaction that YAML holds."""
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
"""How senders write JSON: OpenRouter, Python, compact Python, Python's default, people."""

SPACE = " \t\r\n"
DATA = "data: "
END = "\n\n"
UNSTORABLE = (yaml.YAMLError, ValueError, RecursionError, OverflowError)
"""What parsers and emitters raise for text that they cannot hold: lone surrogates, endless numbers, deep nesting."""


class Flow(dict[str, Any]):
    """A mapping that YAML writes on one line.

    An event of a stream.
    """


class FlowIds(list[int]):
    """A list that YAML writes on one line.

    Token ids.
    """


class _Dumper(yaml.CSafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Libyaml's emitter, without anchors.

    Equal events are written out.
    """

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


_MAP, _SEQ, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str"
_ENDLESS = 2**31 - 1
_Dumper.add_representer(Flow, lambda dumper, data: dumper.represent_mapping(_MAP, data, flow_style=True))
_Dumper.add_representer(FlowIds, lambda dumper, data: dumper.represent_sequence(_SEQ, data, flow_style=True))
_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(_STR, text, '"' if "\n" in text else None))


def dump(value: object) -> str:
    """Return YAML, one event a line.

    Key order is kept; lines are never folded.
    """
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_ENDLESS)
    return text


def load(text: str) -> Any:  # noqa: ANN401 - whatever the YAML says; callers check its shape
    """Read plain YAML, without tags that make objects."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def store(body: bytes) -> Stored:
    """Return the most readable form that restores `body`."""
    return next(form for form in candidate_forms(body) if _survives(form, body))


def restore(form: Mapping[str, Any]) -> bytes:
    """Return the bytes of a stored body.

    Raises ValueError, KeyError or TypeError for anything else.
    """
    if "base64" in form:
        return base64.b64decode(form["base64"], validate=True)
    if "raw" in form:
        return str(form["raw"]).encode("utf-8")
    if "sse" in form:
        events = form["sse"]
        pieces = (str(each["raw"]) if "raw" in each else DATA + STYLES[each["style"]](each["json"]) for each in events)
        return END.join(pieces).encode("utf-8")
    text = f"{form.get('before', '')}{STYLES[form['style']](form['json'])}{form.get('after', '')}"
    return text.encode("utf-8")


def candidate_forms(body: bytes) -> Iterator[Stored]:
    """Yield the forms of a body, the most readable first."""
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
    """Return JSON in the style that writes it so.

    None where no style does. The white space round it is kept: keep-alives come before the JSON.
    """
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
    """Return one event of a stream.

    Its JSON, or the piece as it stands (a comment, `[DONE]`, the empty end).
    """
    parsed = _parsed(piece.removeprefix(DATA)) if piece.startswith(DATA) else None
    if parsed is not None and parsed.keys() == {"json", "style"} and _survives(parsed, piece[len(DATA) :].encode()):
        return Flow(parsed)
    return Flow(raw=piece)


def _survives(form: Stored, body: bytes) -> bool:
    try:
        return restore(load(dump(form))) == body
    except UNSTORABLE:
        return False
