"""What two real engines showed of scripted completions, replayed: each rebuild beside the ids of the same answer."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from harness.cassettes.cassette import dump_cassette, leaks, parse_cassette, read_cassette
from harness.cassettes.staleness import cassette_paths
from harness.engines.cassettes import LIBRARY, Played, as_asked, can_say, played, way_of
from harness.engines.chat import ENGINES, trips_of
from harness.engines.scripted_model import SCRIPTS, SPAN
from harness.views.roundtrip import RoundTrip, read
from pipeline.base.paths import ROOT
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName, committed_fingerprints
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Refusal, RefusedError, TokenRow

WAYS = [(engine, trip) for engine in ENGINES for trip in trips_of(engine)]
NAMES = [f"{engine}-{way_of(trip)}" for engine, trip in WAYS]
every_way = pytest.mark.parametrize("engine, trip", WAYS, ids=NAMES)

OTHER_SPLIT = "other_split"
"""Ids with the text and the length of others: the risk that `counted` states."""

NOT_IN_LAYOUT = {"unclosed", "section_in_thinking", "spelled_close"}
"""Completions that the format has no place for."""

CONTRADICTED: dict[str, set[str]] = {
    "sglang-json-tools": {"id_counter", "spelled_section"},
    "sglang-stream-tools": {"id_counter", "spelled_section"},
    "vllm-json-tools": {
        *("arguments_number_as_text", "cut_in_id", "cut_in_arguments", "cut_after_arguments", "cut_after_call"),
        "cut_after_section",
    },
    "vllm-stream-raw": {"cut_in_id", "cut_after_arguments"},
    "vllm-stream-tools": {"cut_in_id"},
}
"""Answers whose own text says otherwise than their ids: SGLang guesses a name, or parses a section that was written as
text; vLLM writes a number as text, calls a cut `tool_calls`, or sends a call of which nothing came."""


@cache
def tiny() -> Format:
    return open_format("tiny-kimi")


@cache
def answers(engine: str, trip: RoundTrip) -> tuple[Played, ...]:
    return tuple(played(engine, trip, tiny()))


@cache
def fingerprint(engine: str, stream: bool) -> Fingerprint:
    name = ENGINES[engine].name
    return next(one for one in committed_fingerprints(ROOT) if (one.provider, one.stream) == (name, stream))


def rebuilt(one: Played, known: Fingerprint) -> TokenRow | Refusal:
    """What is made of the text view."""
    try:
        view = as_asked(one.exchange.completion, one.script, tiny())
    except RefusedError as error:
        return error.refusal
    asked = Expected(one.exchange.trip.profile.name, None, one.exchange.max_tokens)
    return reconstruct(one.script.prompt, view, tiny(), known, asked)


def with_ids(one: Played, known: Fingerprint) -> TokenRow | Refusal:
    """What is made of the whole answer."""
    try:
        whole = read(one.raw, stream=one.exchange.trip.stream)
    except RefusedError as error:
        return error.refusal
    named = as_asked(replace(whole, provider=known.provider), one.script, tiny())
    return reconstruct(one.script.prompt, named, tiny(), known, Expected(known.provider, None, one.exchange.max_tokens))


def wrong(engine: str, trip: RoundTrip, known: Fingerprint) -> set[str]:
    """The scripts of accepted rows with other ids than the engine's."""
    pairs = ((one, rebuilt(one, known)) for one in answers(engine, trip))
    return {
        one.script.name
        for one, row in pairs
        if isinstance(row, TokenRow) and row.output_ids != one.exchange.truth.output_ids
    }


@every_way
def test_every_script_was_said_as_it_is_written(engine: str, trip: RoundTrip) -> None:
    said = {one.script.name: one.exchange.truth.output_ids for one in answers(engine, trip)}

    assert {name: one.emitted(tiny()) for name, one in SCRIPTS.items() if can_say(engine, one)} == said


@every_way
def test_every_rebuild_is_the_engines_ids_or_a_refusal(engine: str, trip: RoundTrip) -> None:
    assert wrong(engine, trip, fingerprint(engine, trip.stream)) <= {OTHER_SPLIT}


@every_way
def test_the_ids_of_the_same_answer_are_taken_or_contradicted(engine: str, trip: RoundTrip) -> None:
    known = fingerprint(engine, trip.stream)
    rows = {one.script.name: with_ids(one, known) for one in answers(engine, trip)}
    true = {one.script.name: one.exchange.truth.output_ids for one in answers(engine, trip)}

    refused = {name for name, row in rows.items() if isinstance(row, Refusal)}
    way = f"{engine}-{way_of(trip)}"
    assert (NOT_IN_LAYOUT & set(rows)) | CONTRADICTED.get(way, set()) == refused
    assert [] == [name for name, row in rows.items() if isinstance(row, TokenRow) and row.output_ids != true[name]]


def outcomes(engine: str, trip: RoundTrip) -> Iterator[str]:
    for one in answers(engine, trip):
        row = rebuilt(one, fingerprint(engine, trip.stream))
        yield str(row.reason) if isinstance(row, Refusal) else str(row.evidence)


EXPECTED = {
    "sglang-json-raw": {"counted": 41, "count_mismatch": 3, "ambiguous_layout": 2, "replacement_char": 1},
    "sglang-json-tools": {
        "counted": 11, "count_mismatch": 12, "structured_calls": 21, "ambiguous_layout": 2, "replacement_char": 1,
    },
    "sglang-stream-raw": {"counted": 41, "count_mismatch": 3, "ambiguous_layout": 2, "replacement_char": 1},
    "sglang-stream-tools": {
        "counted": 10, "count_mismatch": 9, "structured_calls": 23, "layout_invalid": 2, "ambiguous_layout": 2,
        "replacement_char": 1,
    },
    "vllm-json-raw": {"seam_lossy": 43},
    "vllm-json-tools": {"seam_lossy": 43},
    "vllm-stream-raw": {"seam_lossy": 42, "stream_inconsistent": 1},
    "vllm-stream-tools": {"seam_lossy": 43},
}  # fmt: skip


@every_way
def test_what_becomes_of_the_text_views(engine: str, trip: RoundTrip) -> None:
    """As recorded: SGLang joins tokens in a delta as they come, so that a new recording may part two of the counts."""
    assert EXPECTED[f"{engine}-{way_of(trip)}"] == dict(Counter(outcomes(engine, trip)))


@pytest.mark.parametrize(
    "engine, stream, expected",
    [
        ("sglang", False, {"other_number", "id_no_prefix", OTHER_SPLIT}),
        ("sglang", True, {"other_number", "id_no_prefix", OTHER_SPLIT}),
        ("vllm", False, {"arguments_number_as_text"}),
    ],
)
def test_a_lossy_route_taken_for_lossless_gives_wrong_rows(engine: str, stream: bool, expected: set[str]) -> None:
    """Why the traits must be known: no count tells of a call's own number, or of a number that became text."""
    trip = RoundTrip(ENGINES[engine], stream, tools_sent=True)
    known = fingerprint(engine, stream)
    kept = {TraitName.TOOL_IDS: "verbatim", TraitName.TOOL_ARGUMENTS: "verbatim", TraitName.SEAM: "kept"}
    believed = replace(
        known, traits={**known.traits, **{str(name): Trait(text, 99, proven=True) for name, text in kept.items()}}
    )

    assert expected == wrong(engine, trip, believed)


def test_there_is_a_cassette_for_each_way_and_no_other() -> None:
    files = [path.relative_to(LIBRARY).as_posix() for path in cassette_paths(ROOT) if LIBRARY in path.parents]

    assert sorted(f"{engine}/{way_of(trip)}.yaml" for engine, trip in WAYS) == files


@every_way
def test_a_cassette_is_scrubbed_and_writes_itself_again(engine: str, trip: RoundTrip) -> None:
    path = LIBRARY / engine / f"{way_of(trip)}.yaml"
    text = path.read_bytes().decode("utf-8")

    assert [] == list(leaks(read_cassette(path)))
    assert text == dump_cassette(parse_cassette(text))


@pytest.mark.parametrize("trip", trips_of("sglang"), ids=way_of)
def test_sglang_is_the_one_that_is_pinned(trip: RoundTrip) -> None:
    recorded = read_cassette(LIBRARY / "sglang" / f"{way_of(trip)}.yaml").provenance
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    assert "local" == recorded.source
    assert project["dependency-groups"]["sglang"] == [f"sglang=={recorded.versions['sglang']}"]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=lambda script: script.name)
def test_a_script_fits_into_its_prompt(script: object) -> None:
    assert len(SCRIPTS[getattr(script, "name", "")].emitted(tiny())) <= SPAN - 2
