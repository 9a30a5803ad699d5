"""Every golden: what can fail without a model does fail here.

Its prompt renders to its ids; its ids decode to its text; seen through every view that loses nothing they come back
from the wire as they were, and through every view that loses something they are refused. What a count
cannot see is another sequence of as many tokens that shows the same text, and the grade `counted` says so.
"""

from __future__ import annotations

from functools import cache

import pytest
from syrupy.assertion import SnapshotAssertion

from harness.cassettes.staleness import TOKENIZER, WEIGHTS, other_pins
from harness.goldens.cases import GOLDENS, SMALL, GoldenAnswer
from harness.goldens.extension import FOLDER, TokenGolden, golden_path
from harness.goldens.golden import SUFFIX, Golden, dump_golden, parse_golden, read_golden, tokens_of
from harness.views.roundtrip import RoundTrip, send, trips, true_fingerprint
from pipeline.base.paths import ROOT
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.gate.digests import file_sha256
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Evidence, Reason, Refusal, SpanKind, TokenRow

pytestmark = pytest.mark.contract

TRIPS = {trip.name: trip for trip in trips()}
ROUTES = ["local", *sorted({f"emulator/{trip.profile.slug}" for trip in TRIPS.values()})]
COUNTED_RISK = ("noncanonical_same_count",)
"""Where `counted` may give other ids: another split in as many tokens."""

CASES = [pytest.param(case.id, marks=pytest.mark.covers(*case.features, routes=ROUTES)) for case in GOLDENS.values()]


@cache
def tiny() -> Format:
    return open_format("tiny-kimi")


@cache
def golden_of(case: str) -> Golden:
    return read_golden(golden_path(case))


@cache
def fingerprint(trip: RoundTrip) -> Fingerprint:
    """The committed one of this way, else what a perfect measurement of the profile would give."""
    ways = {(known.provider, known.stream): known for known in committed_fingerprints(ROOT)}
    return ways.get((trip.profile.name, trip.stream)) or true_fingerprint(trip.profile, stream=trip.stream)


def rebuilt(golden: Golden, trip: RoundTrip) -> TokenRow | Refusal:
    completion = send(golden.ids, golden.prompt, golden.prompt_ids, trip, tiny())
    return reconstruct(golden.prompt, completion, tiny(), fingerprint(trip))


def lossy(golden: Golden, trip: RoundTrip) -> Reason | None:
    """Why this view of this golden cannot give its ids back; None where it can."""
    if trip.ids:
        return None
    lost = None if trip.logprobs else lost_text(golden, trip)
    return lost or (Reason.SPECIAL_TEXT if "special_text" in golden.features else None)


def lost_text(golden: Golden, trip: RoundTrip) -> Reason | None:
    """What a view of the text alone loses: white space, hidden tokens, half characters, parsed calls, the split."""
    if not trip.keeps_text:
        return Reason.SEAM_LOSSY
    if golden.case == "cut_at_think_close":
        return Reason.AMBIGUOUS_LAYOUT  # no text shows that the last token was </think>
    if golden.case == "cut_in_character":  # a body shows U+FFFD, a stream holds the half character back for good
        return Reason.AMBIGUOUS_LAYOUT if trip.stream else Reason.REPLACEMENT_CHAR
    answer = GoldenAnswer(golden.ids, tiny(), golden.prompt.thinking)
    if answer.whole and answer.calls and trip.tools_sent:
        return lost_calls(golden, trip)
    if golden.prompt.thinking and answer.whole and answer.reasoning == "":
        return Reason.AMBIGUOUS_LAYOUT  # no text shows that nothing was thought
    return None if answer.canonical else lost_split(answer, trip)


def lost_calls(golden: Golden, trip: RoundTrip) -> Reason | None:
    """Parsed calls keep their ids' text on a route that sends arguments verbatim, and in a prompt without calls."""
    verbatim = (trip.profile.tool_ids, trip.profile.tool_arguments) == ("verbatim", "verbatim")
    earlier = any(message.get("tool_calls") for message in golden.prompt.messages)
    return None if verbatim and not earlier else Reason.STRUCTURED_CALLS


def lost_split(answer: GoldenAnswer, trip: RoundTrip) -> Reason | None:
    """Another split than the canonical one shows in deltas that are tokens, else in the count if it changes it.

    Deltas are no proof where the last of them may have hidden half a character: a space may.
    """
    if trip.stream and trip.profile.deltas == "tokens" and not answer.content.endswith(" "):
        return None
    return Reason.COUNT_MISMATCH if answer.surplus else None


def fault(golden: Golden, trip: RoundTrip) -> str | None:
    """What is wrong with the row or refusal that this view leads to."""
    row, reason = rebuilt(golden, trip), lossy(golden, trip)
    if isinstance(row, Refusal):
        return None if row.reason == reason else f"{trip.name}: refused as {row.reason} ({row.detail}), not {reason}"
    if reason is not None:
        return f"{trip.name}: accepted by {row.evidence}, though the view is {reason}"
    if row.output_ids == golden.ids and row.prompt_ids == golden.prompt_ids:
        return None
    return None if is_counted_risk(golden, row) else f"{trip.name}: rebuilt {row.output_ids} by {row.evidence}"


def is_counted_risk(golden: Golden, row: TokenRow) -> bool:
    """Other ids come under one grade only, of two goldens, as many of them, and with the text that was shown."""
    shown = golden.text.decode("utf-8", errors="ignore")
    same = (len(golden.ids), shown) == (len(row.output_ids), tiny().tokenizer.decode_text(row.output_ids))
    return same and row.evidence is Evidence.COUNTED and golden.case in COUNTED_RISK


@pytest.mark.parametrize("case", CASES)
def test_golden_comes_back_from_every_lossless_view(case: str) -> None:
    assert [] == [found for trip in TRIPS.values() if (found := fault(golden_of(case), trip))]


def test_another_split_shows_in_deltas_that_are_tokens() -> None:
    """The one proof from text that sees what the model sampled, where a count of the same text would not."""
    golden = golden_of("noncanonical_same_count")
    row = rebuilt(golden, TRIPS["siliconflow-stream-raw"])

    assert isinstance(row, TokenRow)
    assert (Evidence.STREAM_DELTAS, golden.ids) == (row.evidence, row.output_ids)


@pytest.mark.parametrize("case", GOLDENS)
def test_golden_renders_decodes_and_matches_its_file(case: str, snapshot: SnapshotAssertion) -> None:
    """What comes back over the strongest view, under today's rendering, is the file by syrupy's own comparison."""
    golden = golden_of(case)
    row = rebuilt(golden, TRIPS["chutes-json-raw-ids"])
    assert isinstance(row, TokenRow), row
    tokenizer = tiny().tokenizer
    received = Golden(
        golden.provenance,
        case,
        GOLDENS[case].features,
        GOLDENS[case].prompt,
        tiny().render(GOLDENS[case].prompt),
        tokens_of(row.output_ids, tokenizer),
        tokenizer.decode_bytes(row.output_ids),
    )

    assert received == snapshot.use_extension(TokenGolden)(name=case)
    assert (golden.features, golden.prompt, golden.text) == (received.features, received.prompt, received.text)


@pytest.mark.parametrize("case", GOLDENS)
def test_golden_shows_what_its_case_is_called_for(case: str) -> None:
    """A cut answer ends where its case says and without an end token; a whole one is what the case asks of it."""
    golden = golden_of(case)
    answer = GoldenAnswer(golden.ids, tiny(), golden.prompt.thinking)

    if GOLDENS[case].cut is None:
        assert GOLDENS[case].shows(answer)
    else:
        assert not answer.whole
        assert SpanKind.END not in {span.kind for span in answer.spans}


@pytest.mark.parametrize("case", GOLDENS)
def test_golden_writes_itself_again(case: str) -> None:
    text = golden_path(case).read_bytes().decode("utf-8")

    assert text == dump_golden(parse_golden(text))


@pytest.mark.parametrize("case", GOLDENS)
def test_golden_is_of_these_weights_and_this_lock(case: str) -> None:
    """By digest and by pinned version, never by date: run `nox -s goldens` after a change."""
    recorded = golden_of(case).provenance
    versions = recorded["versions"]

    assert file_sha256(ROOT / WEIGHTS) == recorded["weights_sha256"]
    assert file_sha256(ROOT / TOKENIZER) == recorded["tokenizer_sha256"]
    assert isinstance(versions, dict)
    assert [] == [*other_pins({name: str(seen) for name, seen in versions.items()}, ROOT)]


def test_every_golden_file_has_its_case() -> None:
    files = sorted(path.name for path in (ROOT / FOLDER).iterdir())

    assert sorted(f"{case}{SUFFIX}" for case in GOLDENS) == files


def test_goldens_hold_every_feature_of_the_layout() -> None:
    features = {feature for case in GOLDENS.values() for feature in case.features}

    assert len(GOLDENS) >= 24
    assert {*SMALL} <= {*GOLDENS}
    assert features == {
        *("system", "multi_turn", "history_reasoning", "tools_declared", "tool_transcript", "thinking", "instant"),
        *("tool_call", "two_calls", "special_text", "unicode", "odd_text", "empty_text", "content_parts", "named"),
        *("code", "seam", "length_cut", "noncanonical"),
    }
