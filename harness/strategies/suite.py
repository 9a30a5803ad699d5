"""The property tests of a format on one tokenizer, made once and run by each group of the contract suite.

Guarantees: the compact and the real vocabulary are held to the same properties, drawn from the same strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from harness.strategies import properties
from harness.strategies.completions import completions, cut_completions, emitted, is_told, plain_texts, texts
from harness.views.roundtrip import RoundTrip, trips
from harness.views.view import PROFILES, Profile
from pipeline.formats.format import Format, Parts, is_headed, tag_names
from pipeline.proof.stream_deltas import may_hide_bytes
from pipeline.records import Ids

Property: TypeAlias = Callable[[], None]


def ways_of(profile: Profile, *, stream: bool) -> list[RoundTrip]:
    """Every way to ask this provider, streamed or not."""
    return [trip for trip in trips() if trip.profile == profile and trip.stream == stream]


def inverse(fmt: Format) -> Property:
    """What was assembled parses as it was."""

    @given(parts=completions(fmt))
    def check(parts: Parts) -> None:
        properties.require_inverse(fmt, parts)

    return check


def inverse_or_refusal(fmt: Format) -> Property:
    """What parses assembles to the same ids, and the rest is refused."""

    @given(ids=emitted(fmt), thinking=st.booleans())
    def check(ids: Ids, thinking: bool) -> None:  # noqa: FBT001 — a drawn value
        properties.require_inverse_or_refusal(fmt, ids, thinking=thinking)

    return check


def never_wrong(fmt: Format, profile: Profile, *, stream: bool) -> Property:
    """Whatever the model emitted and however it was asked: its own ids, or a Refusal."""

    @given(answer=answers(fmt), trip=st.sampled_from(ways_of(profile, stream=stream)))
    def check(answer: tuple[Ids, bool], trip: RoundTrip) -> None:
        properties.require_never_wrong(fmt, answer[0], trip, thinking=answer[1])

    return check


def answers(fmt: Format, text: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[tuple[Ids, bool]]:
    """Ids that a model may emit, many outside the layout, and whether the prompt asked it to think."""
    whole = completions(fmt, text).map(lambda parts: (fmt.assemble(parts).ids, parts.reasoning is not None))
    cut = cut_completions(fmt, texts() if text is None else text).map(lambda parts: (fmt.assemble(parts).ids, True))
    wild = emitted(fmt, None if text is None else text.filter(bool))
    return st.one_of(st.tuples(wild, st.booleans()), whole, cut)


def exact(fmt: Format, trip: RoundTrip, drawn: Sequence[Parts] = ()) -> Property:
    """Over a lossless view every canonical answer is accepted, ids and spans.

    `drawn`: the answers to take where any must be accepted, so that many ways share what takes long to draw.
    """

    def require(parts: Parts) -> None:
        properties.require_exact(fmt, parts, trip)

    return _over(drawn if _proves_any(trip) else (), _accepted(fmt, trip), require)


def drawn_whole(fmt: Format) -> list[Parts]:
    """As many whole answers as the profile in use says."""
    drawn: list[Parts] = []

    @given(parts=completions(fmt))
    def collect(parts: Parts) -> None:
        drawn.append(parts)

    collect()
    return drawn


def _over(drawn: Sequence[Parts], strategy: st.SearchStrategy[Parts], require: Callable[[Parts], None]) -> Property:
    """What must hold of each answer drawn before, and else of those of the strategy.

    Where an answer breaks it, hypothesis draws anew and names the smallest.
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
    """Whether ids or bytes are given, so that any answer must be accepted."""
    return trip.ids or trip.logprobs


def _accepted(fmt: Format, trip: RoundTrip) -> st.SearchStrategy[Parts]:
    """Answers that must be accepted: any where ids or bytes are given, else those whose every token shows."""
    if _proves_any(trip):
        return completions(fmt)
    drawn = st.one_of(completions(fmt, plain_texts()), cut_completions(fmt, plain_texts()))
    return drawn.filter(lambda parts: _shows_all(fmt, parts, trip))


def _shows_all(fmt: Format, parts: Parts, trip: RoundTrip) -> bool:
    """Not so where only the count tells of a control token, nor where a cut stream may have ended inside a character.

    A text that lacks the marker of its tags, or may be cut inside one, does not tell.
    """
    if tag_names(fmt) and (any(isinstance(piece, int) for piece in parts.body) or "<" in str(parts.body[-1:])):
        return False
    if parts.think_closed and not parts.body:
        return False
    if parts.reasoning == "" or (is_headed(fmt) and not is_told(parts)):
        return False
    last = parts.body[-1] if parts.body else parts.reasoning
    return parts.ended or not trip.stream or not isinstance(last, str) or not may_hide_bytes(fmt.tokenizer, last)


def refused(fmt: Format, trip: RoundTrip, drawn: Sequence[Parts] = ()) -> Property:
    """Over a view that loses white space nothing is accepted, whatever the answer; `drawn` as in `exact`."""

    def require(parts: Parts) -> None:
        properties.require_refused(fmt, parts, trip)

    return _over(drawn, completions(fmt), require)


LOSSLESS = [
    trip
    for trip in trips()
    if trip.ids or trip.logprobs or (trip.keeps_text and not trip.tools_sent and not trip.profile.recounts_stream)
]
"""Ways to ask that lose nothing: ids or bytes given, or text kept whole with markers raw."""

LOSSY = [trip for trip in trips() if not trip.keeps_text and not trip.ids and not trip.logprobs]

ROUTES = [(profile, stream) for profile in PROFILES.values() for stream in (False, True)]


def never_wrong_anywhere(fmt: Format) -> Property:
    """The same as `never_wrong` with the route drawn too: one test for a format that shares its code with another."""

    @given(answer=answers(fmt), trip=st.sampled_from(list(trips())))
    def check(answer: tuple[Ids, bool], trip: RoundTrip) -> None:
        properties.require_never_wrong(fmt, answer[0], trip, thinking=answer[1])

    return check


def lossless(
    fmt: Format, text: st.SearchStrategy[str] | None = None, plain: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[tuple[RoundTrip, Parts]]:
    """A lossless way to ask and an answer that must come back by it; half of them are of text alone."""
    plain = plain_texts() if plain is None else plain
    proven = [trip for trip in LOSSLESS if trip.ids or trip.logprobs]
    shown = [trip for trip in LOSSLESS if trip not in proven]
    drawn = st.one_of(completions(fmt, plain), cut_completions(fmt, plain))
    whole = st.tuples(st.sampled_from(shown), drawn).filter(lambda pair: _shows_all(fmt, pair[1], pair[0]))
    return st.one_of(st.tuples(st.sampled_from(proven), completions(fmt, text)), whole)


def exact_anywhere(fmt: Format) -> Property:
    """The same as `exact` with the route drawn too."""

    @given(drawn=lossless(fmt))
    def check(drawn: tuple[RoundTrip, Parts]) -> None:
        properties.require_exact(fmt, drawn[1], drawn[0])

    return check


def refused_anywhere(fmt: Format) -> Property:
    """The same as `refused` with the route drawn too."""

    @given(parts=completions(fmt), trip=st.sampled_from(LOSSY))
    def check(parts: Parts, trip: RoundTrip) -> None:
        properties.require_refused(fmt, parts, trip)

    return check
