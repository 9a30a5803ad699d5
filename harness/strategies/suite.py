"""The property tests of a format on one tokenizer.

Guarantees: the compact and the real vocabulary are held to the same properties, drawn from the same strategies. Each
group of the contract suite runs the tests that are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from harness.strategies import properties
from harness.strategies.completions import completions, cut_completions, emitted, is_text_alone, plain_texts, texts
from harness.views.roundtrip import RoundTrip, trips
from harness.views.view import PROFILES, Profile
from pipeline.formats.format import Format, Parts
from pipeline.proof.stream_deltas import may_hide_bytes
from pipeline.records import Ids

Property: TypeAlias = Callable[[], None]

LOSSLESS = [
    trip
    for trip in trips()
    if trip.ids or trip.logprobs or (trip.keeps_text and not trip.tools_sent and not trip.profile.recounts_stream)
]
"""Ways to ask that lose nothing: ids or bytes given, or text kept whole with markers raw."""

LOSSY = [trip for trip in trips() if not trip.keeps_text and not trip.ids and not trip.logprobs]

ROUTES = [(profile, stream) for profile in PROFILES.values() for stream in (False, True)]


def ways_of(profile: Profile, *, stream: bool) -> list[RoundTrip]:
    """Return every way to ask this provider, streamed or not."""
    return [trip for trip in trips() if trip.profile == profile and trip.stream == stream]


def inverse(fmt: Format) -> Property:
    """Make the test that assembled parts parse as they were."""

    @given(parts=completions(fmt))
    def check(parts: Parts) -> None:
        properties.require_inverse(fmt, parts)

    return check


def inverse_or_refusal(fmt: Format) -> Property:
    """Make the test that ids which parse assemble to themselves.

    The rest is refused.
    """

    @given(ids=emitted(fmt), thinking=st.booleans())
    def check(ids: Ids, thinking: bool) -> None:  # noqa: FBT001 — a drawn value
        properties.require_inverse_or_refusal(fmt, ids, thinking=thinking)

    return check


def never_wrong(fmt: Format, profile: Profile, *, stream: bool) -> Property:
    """Make the test that a row has its own ids.

    Or it is refused, whatever the model emitted and however it was asked.
    """

    @given(answer=answers(fmt), trip=st.sampled_from(ways_of(profile, stream=stream)))
    def check(answer: tuple[Ids, bool], trip: RoundTrip) -> None:
        properties.require_never_wrong(fmt, answer[0], trip, thinking=answer[1])

    return check


def answers(fmt: Format, text: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[tuple[Ids, bool]]:
    """Draw ids, and whether the prompt asked to think.

    Many lie outside the layout.
    """
    whole = completions(fmt, text).map(lambda parts: (fmt.assemble(parts).ids, parts.reasoning is not None))
    cut = cut_completions(fmt, texts() if text is None else text).map(lambda parts: (fmt.assemble(parts).ids, True))
    wild = emitted(fmt, None if text is None else text.filter(bool))
    return st.one_of(st.tuples(wild, st.booleans()), whole, cut)


def exact(fmt: Format, trip: RoundTrip, drawn: Sequence[Parts] = ()) -> Property:
    """Make the test that a lossless view accepts canonical answers.

    Each with its own ids and spans. `drawn`: the answers to take where any must be accepted, so that many ways share
    what takes long to draw.
    """

    def require(parts: Parts) -> None:
        properties.require_exact(fmt, parts, trip)

    return _over(drawn if _proves_any(trip) else (), _accepted(fmt, trip), require)


def drawn_whole(fmt: Format) -> list[Parts]:
    """Draw whole answers, as many as the profile says."""
    drawn: list[Parts] = []

    @given(parts=completions(fmt))
    def collect(parts: Parts) -> None:
        drawn.append(parts)

    collect()
    return drawn


def _over(drawn: Sequence[Parts], strategy: st.SearchStrategy[Parts], require: Callable[[Parts], None]) -> Property:
    """Make the test of drawn answers, else of new ones.

    Where an answer breaks it, hypothesis draws again and names the smallest.
    """
    anew = given(parts=strategy)(require)

    def check() -> None:
        try:
            for parts in drawn:
                require(parts)
        except properties.PropertyError:
            anew()
            raise
        if not drawn:
            anew()

    return check


def _proves_any(trip: RoundTrip) -> bool:
    """Return whether ids or bytes are given.

    Then any answer must be accepted.
    """
    return trip.ids or trip.logprobs


def _accepted(fmt: Format, trip: RoundTrip) -> st.SearchStrategy[Parts]:
    """Draw answers that must be accepted.

    Any where ids or bytes are given, else those whose every token shows.
    """
    if _proves_any(trip):
        return completions(fmt)
    drawn = st.one_of(completions(fmt, plain_texts()), cut_completions(fmt, plain_texts()))
    return drawn.filter(lambda parts: _shows_all(fmt, parts, trip))


def _shows_all(fmt: Format, parts: Parts, trip: RoundTrip) -> bool:
    """Return whether every token of the answer shows.

    Not so where only the count reveals a control token, nor where a cut stream may have ended inside a character. A
    text that lacks the marker of its tags, or may be cut inside one, shows too little.
    """
    if fmt.tag_names and (any(isinstance(piece, int) for piece in parts.body) or "<" in str(parts.body[-1:])):
        return False
    if parts.think_closed and not parts.body:
        return False
    if parts.reasoning == "" or (fmt.is_headed and not is_text_alone(parts)):
        return False
    last = parts.body[-1] if parts.body else parts.reasoning
    return parts.ended or not trip.stream or not isinstance(last, str) or not may_hide_bytes(fmt.tokenizer, last)


def refused(fmt: Format, trip: RoundTrip, drawn: Sequence[Parts] = ()) -> Property:
    """Make the test that a lossy view accepts nothing.

    It loses white space. `drawn` as in `exact`.
    """

    def require(parts: Parts) -> None:
        properties.require_refused(fmt, parts, trip)

    return _over(drawn, completions(fmt), require)


def never_wrong_anywhere(fmt: Format) -> Property:
    """Make the test `never_wrong` with the route drawn too.

    One test for a format that shares its code with another.
    """

    @given(answer=answers(fmt), trip=st.sampled_from(list(trips())))
    def check(answer: tuple[Ids, bool], trip: RoundTrip) -> None:
        properties.require_never_wrong(fmt, answer[0], trip, thinking=answer[1])

    return check


def lossless(
    fmt: Format, text: st.SearchStrategy[str] | None = None, plain: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[tuple[RoundTrip, Parts]]:
    """Draw a lossless way to ask, with an answer.

    Half of them are of text alone.
    """
    plain = plain_texts() if plain is None else plain
    proven = [trip for trip in LOSSLESS if trip.ids or trip.logprobs]
    shown = [trip for trip in LOSSLESS if trip not in proven]
    drawn = st.one_of(completions(fmt, plain), cut_completions(fmt, plain))
    whole = st.tuples(st.sampled_from(shown), drawn).filter(lambda pair: _shows_all(fmt, pair[1], pair[0]))
    return st.one_of(st.tuples(st.sampled_from(proven), completions(fmt, text)), whole)


def exact_anywhere(fmt: Format) -> Property:
    """Make the test `exact` with the route drawn too."""

    @given(drawn=lossless(fmt))
    def check(drawn: tuple[RoundTrip, Parts]) -> None:
        properties.require_exact(fmt, drawn[1], drawn[0])

    return check


def refused_anywhere(fmt: Format) -> Property:
    """Make the test `refused` with the route drawn too."""

    @given(parts=completions(fmt), trip=st.sampled_from(LOSSY))
    def check(parts: Parts, trip: RoundTrip) -> None:
        properties.require_refused(fmt, parts, trip)

    return check
