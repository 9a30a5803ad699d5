"""Live cassettes: a probe's exchanges, scrubbed in both directions.

Guarantees: a cassette is made of what a probe left on disk, and by no test run; there is one for each probe and form.
Kept are whole answers of the provider and the model that were asked; what is not kept has its reason printed.
Recordings of the emulator say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness.cassettes.cassette import Cassette, Interaction, Provenance, save_cassette
from harness.cassettes.replay import EMULATOR_URL
from harness.cassettes.scrub import (
    KEPT_REQUEST,
    KEPT_RESPONSE,
    key_forms,
    scrub_body,
    scrub_headers,
    scrub_uri,
    secrets_in,
)
from harness.cassettes.staleness import versions
from pipeline.base.json_lines import object_of
from pipeline.fingerprints.exchanges import Exchange, ExchangesError, exchange_of
from pipeline.generation.engines.openrouter import KEY_VARIABLE, encode_body, is_loopback
from pipeline.generation.outcome import refusing_errors
from pipeline.generation.probe.exchange_file import VERBATIM
from pipeline.proof.fingerprint import is_model
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Completion, Json, JsonObject, Refusal, RefusedError

FOLDER = "live"
PIECES = "in pieces"
"""Ends what `secrets_in` says of a secret that deltas spell out: one of them alone may look like none."""


@dataclass(frozen=True, slots=True)
class RecordedProbe:
    """One exchange with its origin.

    The route's name, the probe, when it was answered, its headers.
    """

    exchange: Exchange
    route: str
    probe: str
    at: datetime
    headers: Mapping[str, list[str]]

    @property
    def name(self) -> str:
        """Return the cassette that it belongs to.

        Its path in the library without the suffix.
        """
        form = "stream" if self.exchange.stream else "json"
        return f"{folder_of(self.route, self.exchange.model)}/{self.probe}.{form}"

    @property
    def completion(self) -> Completion | Refusal:
        """Return the answer off the wire, or its refusal."""
        body = self.exchange.body
        if self.exchange.stream:
            return refusing_errors(lambda: completion_of_sse(body))
        return refusing_errors(lambda: completion_of_json(body.encode()))

    def why_not(self) -> str:
        """Say why it is not kept; empty where it is."""
        if self.exchange.fidelity != VERBATIM:
            return f"the copy is no verbatim one ({self.exchange.fidelity})"
        if isinstance(found := self.completion, Refusal):
            return f"no answer can be read in it ({found.reason}: {found.detail})"
        if found.provider != self.exchange.provider:
            return f"{found.provider} answered, {self.exchange.provider} was asked"
        if found.model is None or not is_model(self.exchange.model, found.model):
            return f"{found.model} answered, {self.exchange.model} was asked"
        secrets = secrets_in(self.exchange.body.encode(), keys=_keys())
        pieces = next((what for what in secrets if what.endswith(PIECES)), "")
        return f"it spells a secret out, where no mark can stand ({pieces})" if pieces else ""


def folder_of(route: str, model: str) -> str:
    """Return a model's folder in the library, on one route.

    As `live/siliconflow--moonshotai--kimi-k2.5`.
    """
    provider = route.partition("/")[2]
    return f"{FOLDER}/{provider.replace('/', '--')}--{model.replace('/', '--')}"


def read_recorded(path: Path) -> list[RecordedProbe]:
    """Read a probe's `exchanges.jsonl`.

    Raises ExchangesError for a file that is none.
    """
    try:
        lines = [line for line in path.read_bytes().split(b"\n") if line]
    except OSError as error:
        message = f"{path}: no exchanges can be read there ({error.strerror}). Name the folder of a probe"
        raise ExchangesError(message) from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(recorded_probe(object_of(line)))
        except (RefusedError, ValueError, KeyError, TypeError) as error:
            raise ExchangesError(f"{path}, line {number}: no exchange of a probe ({error})") from error
    return found


def recorded_probe(line: JsonObject) -> RecordedProbe:
    """Return the exchange that a line holds."""
    source, headers = line["source"], line["headers"]
    if not isinstance(source, dict) or not isinstance(headers, dict):
        raise TypeError("source and headers must be objects")
    at = datetime.fromisoformat(str(source["answered_at"]))
    sent = {name: [str(value)] for name, value in headers.items()}
    return RecordedProbe(exchange_of(line), str(source["route"]), str(source["row"]).partition("/")[0], at, sent)


def cassettes_of(recorded: Sequence[RecordedProbe], root: Path) -> dict[str, Cassette]:
    """Return the cassettes by name.

    Repeated answers to one question stand in one.
    """
    keys = _keys()
    names = dict.fromkeys(one.name for one in recorded)
    groups = {name: [one for one in recorded if one.name == name] for name in names}
    return {name: cassette_of(group, root, keys) for name, group in groups.items()}


def cassette_of(group: Sequence[RecordedProbe], root: Path, keys: frozenset[str]) -> Cassette:
    """Return one cassette of the answers to one question."""
    first = group[0]
    source: Literal["live", "emulator"] = "live" if first.route.startswith("openrouter/") else "emulator"
    provenance = Provenance(
        recorded_at=min(one.at for one in group).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=source,
        route=first.route,
        model=first.exchange.model,
        stream=first.exchange.stream,
        versions=versions(root),
    )
    return Cassette(provenance, tuple(scrubbed_interaction(one, keys) for one in group))


def scrubbed_interaction(one: RecordedProbe, keys: frozenset[str]) -> Interaction:
    """Return the exchange as a cassette holds it, without secrets."""
    request: dict[str, object] = dict(one.exchange.request or {})
    # A loopback address is the emulator's, whose port is another each time.
    emulated = is_loopback(f"http://{one.exchange.endpoint}")
    uri = f"{EMULATOR_URL}/chat/completions" if emulated else f"https://{one.exchange.endpoint}"
    return Interaction(
        method="POST",
        uri=scrub_uri(uri, keys),
        request_headers=scrub_headers({"content-type": ["application/json"]}, KEPT_REQUEST, keys),
        request_body=scrub_body(encode_body(request), answer=False, keys=keys),
        status=one.exchange.status,
        reason="OK",
        headers=scrub_headers(one.headers, KEPT_RESPONSE, keys),
        body=scrub_body(one.exchange.body.encode(), answer=True, keys=keys),
    )


def _keys() -> frozenset[str]:
    """Return the key in use, where there is one.

    It has a shape of its own only with its prefix.
    """
    value = os.environ.get(KEY_VARIABLE, "")
    return key_forms({"authorization": f"Bearer {value}"} if value else {})


def save_all(cassettes: Mapping[str, Cassette], library: Path) -> Iterator[Path]:
    """Write each cassette, and yield its path.

    Raises CassetteError where one may not be written, OSError.
    """
    for name, cassette in cassettes.items():
        path = library / f"{name}.yaml"
        save_cassette(path, cassette)
        yield path


def request_of(interaction: Interaction) -> dict[str, Json]:
    """Return the recorded request as an object."""
    return object_of(interaction.request_body)
