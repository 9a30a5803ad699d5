"""Record and replay of HTTP, over vcrpy.

Guarantees: under replay nothing is sent, whatever a marker, an option or a missing cassette says; a request is answered
only if method, host, path, query and every byte of its body are those recorded; a cassette that is not played to its
end is an error, and fails the test that opened it. Recording hands back what was recorded, scrubbed, and saves nothing
by itself, so that a run that failed leaves no cassette behind. Only `python -m harness cassettes record` records: no
test chooses to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import pytest
import vcr
from vcr import matchers
from vcr.persisters.filesystem import CassetteNotFoundError
from vcr.record_mode import RecordMode
from vcr.request import Request

from harness.cassettes.cassette import Cassette, CassetteError, Interaction, read_cassette
from harness.cassettes.scrub import (
    KEPT_REQUEST,
    KEPT_RESPONSE,
    key_forms,
    scrub_body,
    scrub_headers,
    scrub_uri,
    secrets_in,
)
from pipeline.generation.engines.openrouter import is_loopback

EMULATOR: Final = "emulator.invalid"
"""Stands in a cassette for the emulator's loopback address, whose port changes (RFC 6761: no host has this name)."""

EMULATOR_URL: Final = f"http://{EMULATOR}/api/v1"
OpenCassette: TypeAlias = Callable[[str], Cassette]
MATCH_ON: Final = ("method", "host", "path", "query", "same_body")


@dataclass(slots=True)
class Tape:
    """What is being recorded.

    Whole once the `with` has ended.
    """

    interactions: tuple[Interaction, ...] = ()


@contextmanager
def recording() -> Iterator[Tape]:
    """Let requests through, and keep them with their answers.

    A stream reaches the caller only when it has ended.
    """
    tape = Tape()
    keys: set[str] = set()
    with _vcr(RecordMode.ALL, _Nowhere(), keys).use_cassette("recording") as cassette:
        yield tape
        pairs = zip(cassette.requests, cassette.responses, strict=True)
        tape.interactions = tuple(_keyless(recorded_interaction(*pair), frozenset(keys)) for pair in pairs)


@contextmanager
def replaying(path: Path) -> Iterator[Cassette]:
    """Answer requests from the cassette at `path`.

    Each recording answers once. Raises CassetteError where some were not asked for.
    """
    recorded = read_cassette(path)
    with _vcr(RecordMode.NONE, _Loaded(recorded)).use_cassette(str(path)) as cassette:
        yield recorded
        if not cassette.all_played:
            unplayed = f"{len(cassette) - cassette.play_count} of {len(cassette)} recordings"
            raise CassetteError(f"{path}: {unplayed} were not asked for. Remove what is unused")


def _vcr(mode: RecordMode, persister: object, keys: set[str] | None = None) -> vcr.VCR:
    """Return a VCR that scrubs what it records.

    `keys` collects the keys that requests carry, while their headers are there.
    """

    def request_of(request: Request) -> Request:
        forms = key_forms({name: _text(value) for name, value in request.headers.items()})
        if keys is not None:
            keys.update(forms)
        return scrubbed_request(request, forms)

    made = vcr.VCR(
        record_mode=mode,
        match_on=MATCH_ON,
        before_record_request=request_of,
        before_record_response=scrubbed_answer,
        decode_compressed_response=True,
        record_on_exception=False,
    )
    made.register_matcher("same_body", same_body)
    made.register_persister(persister)
    return made


class _Nowhere:
    """Write no file: recordings are taken from memory.

    Vcrpy would write the file although the run fails after it.
    """

    def load_cassette(self, _path: str, **_: object) -> Any:  # noqa: ANN401 - never returns
        raise CassetteNotFoundError

    def save_cassette(self, _path: str, _recorded: object, **_: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A cassette that has been read already.

    Vcrpy takes one that it cannot read for an empty one.
    """

    cassette: Cassette

    def load_cassette(self, _path: str, **_: object) -> tuple[list[Request], list[dict[str, Any]]]:
        return [*map(_request, self.cassette.interactions)], [*map(_answer, self.cassette.interactions)]

    def save_cassette(self, path: str, _recorded: object, **_: object) -> None:
        raise CassetteError(f"{path}: a replay must not write")


def same_body(mine: Request, recorded: Request) -> None:
    """Match bodies whose bytes are equal.

    Raises AssertionError with vcrpy's own diff of the parsed bodies.
    """
    if _bytes(mine.body) != _bytes(recorded.body):
        matchers.body(mine, recorded)
        raise AssertionError("the bodies are the same JSON in other bytes")


def _keyless(each: Interaction, keys: frozenset[str]) -> Interaction:
    """Remove the keys in use, which need no known shape.

    Raises CassetteError where one is spelled out over several pieces of an answer, where no mark can stand.
    """
    body = scrub_body(each.body, answer=True, keys=keys)
    if found := [what for what in secrets_in(body, keys=keys) if what.startswith("the key in use")]:
        raise CassetteError(f"the answer of {each.uri} holds {found[0]}, and was not kept. Record another answer")
    headers = scrub_headers(each.headers, KEPT_RESPONSE, keys)
    reason = scrub_body(each.reason.encode("utf-8", "surrogatepass"), answer=True, keys=keys)
    scrubbed = replace(each, uri=scrub_uri(each.uri, keys), headers=headers, body=body)
    return replace(scrubbed, reason=reason.decode("utf-8", "surrogatepass"))


def scrubbed_request(request: Request, keys: frozenset[str]) -> Request:
    """Return the request without secrets and without the emulator's port."""
    uri = urlsplit(request.uri)
    authority = EMULATOR if is_loopback(request.uri) else uri.netloc
    scrubbed = scrub_uri(urlunsplit((uri.scheme, authority, uri.path, uri.query, "")), keys)
    headers = scrub_headers({name: [_text(value)] for name, value in request.headers.items()}, KEPT_REQUEST)
    body = scrub_body(_bytes(request.body), answer=False, keys=keys)
    return Request(request.method, scrubbed, body, {name: ", ".join(values) for name, values in headers.items()})


def scrubbed_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer without secrets."""
    headers = {name: [_text(value) for value in values] for name, values in answer["headers"].items()}
    body = scrub_body(_bytes(answer["body"]["string"]), answer=True)
    return {**answer, "headers": scrub_headers(headers, KEPT_RESPONSE), "body": {"string": body}}


def _bytes(body: object) -> bytes:
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode("utf-8")
    if not isinstance(body, bytes | bytearray):
        raise CassetteError(f"a body of type {type(body).__name__} cannot be recorded; send bytes")
    return bytes(body)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def recorded_interaction(request: Request, answer: dict[str, Any]) -> Interaction:
    """Return an interaction of vcrpy's request and answer."""
    return Interaction(
        method=request.method,
        uri=request.uri,
        request_headers={name: [value] for name, value in request.headers.items()},
        request_body=_bytes(request.body),
        status=answer["status"]["code"],
        reason=answer["status"]["message"] or "",
        headers=answer["headers"],
        body=_bytes(answer["body"]["string"]),
    )


def _request(each: Interaction) -> Request:
    headers = {name: ", ".join(values) for name, values in each.request_headers.items()}
    return Request(each.method, each.uri, each.request_body, headers)


def _answer(each: Interaction) -> dict[str, Any]:
    status = {"code": each.status, "message": each.reason}
    return {"status": status, "headers": dict(each.headers), "body": {"string": each.body}}


class _TestFailedError(Exception):
    """End the replays of a failed test.

    Whether they were played out is not asked then.
    """


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[OpenCassette]:
    """Answer every request from a named cassette.

    `cassette("emulator/chutes/stream")` names the file below `cassettes/`; it answers until the test ends.
    """
    library = request.config.rootpath / "cassettes"
    failed_before = request.session.testsfailed
    with suppress(_TestFailedError), ExitStack() as stack:
        yield lambda name: stack.enter_context(replaying(library / f"{name}.yaml"))
        if request.session.testsfailed > failed_before:
            raise _TestFailedError  # a test that failed half-way has said enough
