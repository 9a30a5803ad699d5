"""The properties of a format's round trips, over drawn values.

Guarantees: each raises `PropertyError` with the values that break it. The contract suite runs them with few examples on
the compact and the real vocabulary; `harness.measures.families` with many on every family.
"""

from __future__ import annotations

from dataclasses import replace

from harness.views.roundtrip import RoundTrip, send, shown_of, true_fingerprint
from pipeline.formats.format import Format, Opener, Parts
from pipeline.proof.reconstruct import reconstruct
from pipeline.proof.stream_deltas import without_repeats
from pipeline.records import Evidence, Ids, Prompt, Reason, Refusal, RefusedError, TokenRow


class PropertyError(Exception):
    """A drawn value that breaks a promise.

    `accepted`: a row was accepted that should have been refused.
    """

    def __init__(self, message: str, *, accepted: bool = False) -> None:
        super().__init__(message)
        self.accepted = accepted


def asked(*, thinking: bool) -> Prompt:
    """Return a prompt that a drawn answer answers."""
    return Prompt("drawn", ({"role": "user", "content": "hi"},), (), thinking)


def require_inverse(fmt: Format, parts: Parts) -> None:
    """Require `parse(assemble(parts)) == parts`.

    Unless no reader can tell the parts apart.
    """
    ids = fmt.assemble(parts).ids
    again = fmt.parse(ids, thinking=parts.reasoning is not None)
    if again != parts:
        raise PropertyError(f"{parts} assembles to {ids}, which parses as {again}")


def require_inverse_or_refusal(fmt: Format, ids: Ids, *, thinking: bool) -> bool:
    """Require that ids which parse assemble to themselves.

    Returns whether they parsed; the rest is refused.
    """
    try:
        parts = fmt.parse(ids, thinking=thinking)
    except RefusedError:
        return False
    if (again := fmt.assemble(parts).ids) != ids:
        raise PropertyError(f"{ids} parses as {parts}, which assembles to {again}")
    return True


def rebuilt(fmt: Format, ids: Ids, trip: RoundTrip, *, thinking: bool) -> TokenRow | Refusal:
    """Return what is made of the answer sent by `trip`."""
    prompt = asked(thinking=thinking)
    try:
        prompt_ids = fmt.render(prompt)
        completion = send(ids, prompt, prompt_ids, trip, fmt)
    except RefusedError as error:
        return error.refusal
    return reconstruct(prompt, completion, fmt, true_fingerprint(trip.profile, stream=trip.stream, fmt=fmt))


def require_never_wrong(fmt: Format, ids: Ids, trip: RoundTrip, *, thinking: bool) -> TokenRow | Refusal:
    """Require the true ids or a Refusal.

    `counted` alone may give another sequence with the same shown text and count.
    """
    row = rebuilt(fmt, ids, trip, thinking=thinking)
    if isinstance(row, Refusal) or row.output_ids == ids or is_counted_risk(fmt, row, ids, trip, thinking=thinking):
        return row
    message = f"{trip.name}: emitted {ids}, rebuilt {row.output_ids} as {row.evidence}"
    raise PropertyError(message, accepted=True)


def is_counted_risk(fmt: Format, row: TokenRow, ids: Ids, trip: RoundTrip, *, thinking: bool) -> bool:
    """Return whether a wrong row is `counted`'s stated risk.

    The route then shows its ids and the true ones alike: a re-split of the same length, or one that hidden tokens make
    up for. Ids that are canonical and in the layout are never excused: the proof must rule out other readings of their
    text.
    """
    if row.evidence is not Evidence.COUNTED or _is_parsed(fmt, ids, thinking=thinking):
        return False
    ours, true = (shown_of(one, asked(thinking=thinking), trip, fmt) for one in (row.output_ids, ids))
    return replace(ours, deltas=(), logprobs=()) == replace(true, deltas=(), logprobs=())


def _is_parsed(fmt: Format, ids: Ids, *, thinking: bool) -> bool:
    try:
        fmt.parse(ids, thinking=thinking)
    except RefusedError:
        return False
    return True


def require_exact(fmt: Format, parts: Parts, trip: RoundTrip) -> TokenRow | Refusal:
    """Require a canonical answer with its own ids and spans.

    The view is lossless. Two exceptions: a stream whose deltas repeat, where the count does not rule out that the
    server repeated them; and a thinking that was asked for and is not shown, which no text proves.
    """
    assembled = fmt.assemble(parts)
    thinking = parts.reasoning is not None
    row = rebuilt(fmt, assembled.ids, trip, thinking=thinking)
    unshown = not parts.reasoning and fmt.opener(thinking=thinking) is not Opener.NOBODY
    if isinstance(row, Refusal) and unshown and not (trip.ids or trip.logprobs):
        return row
    if (
        isinstance(row, Refusal)
        and row.reason is Reason.STREAM_INCONSISTENT
        and _repeats(fmt, assembled.ids, trip, parts)
    ):
        return row
    if not isinstance(row, TokenRow) or row.output_ids != assembled.ids or row.spans != assembled.spans:
        raise PropertyError(f"{trip.name}: {parts} came back as {row}", accepted=isinstance(row, TokenRow))
    return row


def _repeats(fmt: Format, ids: Ids, trip: RoundTrip, parts: Parts) -> bool:
    """Return whether some deltas may be repetitions of others."""
    shown = shown_of(ids, asked(thinking=parts.reasoning is not None), trip, fmt)
    fields = ([delta.text for delta in shown.deltas if delta.field == name] for name in ("reasoning", "content"))
    return any(next(without_repeats(texts), None) is not None for texts in fields)


def require_refused(fmt: Format, parts: Parts, trip: RoundTrip) -> Reason:
    """Require that a lossy view is refused; return the reason."""
    row = rebuilt(fmt, fmt.assemble(parts).ids, trip, thinking=parts.reasoning is not None)
    if isinstance(row, TokenRow):
        raise PropertyError(f"{trip.name}: {parts} was accepted as {row.evidence}", accepted=True)
    return row.reason
