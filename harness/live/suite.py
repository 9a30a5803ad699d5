"""A paid route's live contract: its table and tests.

Guarantees: an answer is replayed through the real client, read off the wire and rebuilt by the committed fingerprint;
what comes out is compared with the table of what it gave when it was recorded. The table lies beside the tests and not
in the cassette. A feature is covered where an answer that has it was proven.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from harness.attestation.required import CONTRACT, LIVE, TABLE
from harness.cassettes.cassette import Cassette, Interaction, dump_cassette, leaks, parse_cassette, read_cassette
from harness.cassettes.replay import replaying
from harness.views.roundtrip import read
from pipeline.base.json_lines import object_of
from pipeline.base.paths import ROOT
from pipeline.base.prompts import prompt_of
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.generation.engines.openrouter import OpenRouter
from pipeline.generation.outcome import refusing_errors
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints, fingerprint_of
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Evidence, Json, JsonObject, Refusal, TokenRow

SUITE = '''"""The live contract of one paid route: recorded answers are rebuilt as they were when they were recorded.

Written by `nox -s cassettes -- --live`, with the table beside it; neither is edited by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.live.suite import faults, params, read_table, rebuilt, unlisted

pytestmark = pytest.mark.contract

TABLE = read_table(Path(__file__).parent)


@pytest.mark.parametrize("name", params(TABLE))
def test_recorded_answers_are_rebuilt_as_they_were(name: str) -> None:
    assert TABLE.entries[name].rows == rebuilt(TABLE, name)


@pytest.mark.parametrize("name", TABLE.entries)
def test_cassette_is_scrubbed_and_writes_itself_again(name: str) -> None:
    assert [] == faults(name)


def test_every_cassette_of_the_route_is_listed() -> None:
    assert [] == unlisted(TABLE)
'''
"""The tests of a live route: the same for each, so that the table is all that differs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One cassette: how it was asked, what its answers gave.

    `rows` holds the evidence of each answer, or the reason of its refusal.
    """

    format: str
    provider: str
    prompt: JsonObject
    features: tuple[str, ...]
    rows: tuple[str, ...]

    @property
    def is_proven(self) -> bool:
        """Return whether an answer was accepted."""
        return any(row in set(Evidence) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Table:
    """What a route's cassettes gave, by name."""

    route: str
    entries: Mapping[str, Entry]


def read_table(folder: Path) -> Table:
    """Read the table beside a route's tests."""
    document = json.loads((folder / TABLE).read_bytes())
    entries = {
        name: Entry(entry["format"], entry["provider"], entry["prompt"], tuple(entry["features"]), tuple(entry["rows"]))
        for name, entry in document["cassettes"].items()
    }
    return Table(document["route"], entries)


def write_suite(table: Table, root: Path) -> Path:
    """Write the table and the tests of its route.

    Returns their folder. Raises OSError.
    """
    name = table.route.replace("/", "--")
    folder = root / CONTRACT / LIVE / name
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "route": table.route,
        "cassettes": {key: entry_document(table.entries[key]) for key in sorted(table.entries)},
    }
    (folder / TABLE).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8", newline="\n")
    (folder / f"test_live_{re.sub('[^a-z0-9]+', '_', name)}.py").write_text(SUITE, "utf-8", newline="\n")
    return folder


def entry_document(entry: Entry) -> dict[str, Json]:
    """Return an entry as the table's file holds it."""
    return {
        "format": entry.format,
        "provider": entry.provider,
        "prompt": dict(entry.prompt),
        "features": [*entry.features],
        "rows": [*entry.rows],
    }


def params(table: Table) -> list[object]:
    """Return a parameter a cassette, marked with its coverage."""
    marks = {
        name: (pytest.mark.covers(*entry.features, route=f"{table.route} {entry.format}"),) if entry.is_proven else ()
        for name, entry in table.entries.items()
    }
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


def rebuilt(table: Table, name: str, root: Path = ROOT) -> tuple[str, ...]:
    """Return the evidence or reason of each answer, in order.

    Of one cassette, replayed.
    """
    entry, path = table.entries[name], _path(name, root)
    with replaying(path) as recorded:
        bodies = asyncio.run(replayed(recorded))
    known, fmt = committed_fingerprints(root), opened(entry.format)
    again = [replace(each, body=raw) for each, raw in zip(recorded.interactions, bodies, strict=True)]
    return tuple(outcome(entry, fmt, recorded.provenance.model, each, known) for each in again)


async def replayed(recorded: Cassette) -> list[bytes]:
    """Send every recorded request again; return the bodies."""
    async with OpenRouter(recorded.interactions[0].uri.removesuffix("/chat/completions")) as client:
        return [(await client.send(each.request_body)).raw for each in recorded.interactions]


def outcome(entry: Entry, fmt: Format, model: str, recorded: Interaction, known: Sequence[Fingerprint]) -> str:
    """Return what one answer gives.

    A grade of evidence, or the reason of its refusal.
    """
    row = refusing_errors(lambda: rebuilt_row(entry, fmt, model, recorded, known))
    return str(row.evidence if isinstance(row, TokenRow) else row.reason)


def rebuilt_row(
    entry: Entry, fmt: Format, model: str, recorded: Interaction, known: Sequence[Fingerprint]
) -> TokenRow | Refusal:
    """Rebuild one recorded answer by the committed fingerprints."""
    request = object_of(recorded.request_body)
    limit = request.get("max_tokens")
    completion = read(recorded.body, stream=request.get("stream") is True)
    fingerprint = refusing_errors(lambda: fingerprint_of(completion, known))
    return reconstruct(
        prompt_of(entry.prompt),
        completion,
        fmt,
        None if isinstance(fingerprint, Refusal) else fingerprint,
        Expected(entry.provider, model, limit if isinstance(limit, int) else None),
    )


@cache
def opened(name: str, where: str | None = None) -> Format:
    """Return the format, read once."""
    return open_format(name, where)


def faults(name: str, root: Path = ROOT) -> list[str]:
    """Return secrets in a cassette, and signs of hand edits."""
    text = _path(name, root).read_bytes().decode("utf-8")
    edited = [] if text == dump_cassette(parse_cassette(text)) else ["it was edited by hand"]
    return [*leaks(parse_cassette(text)), *edited]


def unlisted(table: Table, root: Path = ROOT) -> list[str]:
    """Return cassettes that the table lacks, and missing files."""
    library = root / "cassettes"
    names = {
        path.relative_to(library).with_suffix("").as_posix()
        for path in (library / LIVE).rglob("*.yaml")
        if read_cassette(path).provenance.route == table.route
    }
    return sorted(names ^ set(table.entries))


def _path(name: str, root: Path) -> Path:
    return root / "cassettes" / f"{name}.yaml"
