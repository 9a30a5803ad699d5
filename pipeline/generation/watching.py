"""What the breaker is shown of each row: the signs of an answer that was paid for.

Guarantees: an answer is judged by what came, whether it was accepted or not; rows that were never asked are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.base.money import usd_text
from pipeline.generation.breaker import SIGNS_OF, Seen, Sign, Trip
from pipeline.generation.loops import is_loop
from pipeline.generation.outcome import Fate, Outcome
from pipeline.records import Completion, Refusal, TokenRow

CUT = frozenset({"length", "max_tokens", "max_output_tokens"})


def seen_of(outcome: Outcome, row: TokenRow | Refusal | None) -> Seen | None:
    """What the breaker is shown; None for a row that was turned away free of charge, or not asked in this session.

    An answer found in the ledger says nothing of how the provider does now: a run that was killed would for ever pause
    on what the kill itself had left.
    """
    prompt = outcome.row.prompt
    if outcome.fate is Fate.AGAIN or outcome.request is None or not outcome.sent:
        return None
    signs = frozenset(_signs(outcome, row))
    return Seen(prompt.id, prompt.dataset, isinstance(row, TokenRow), signs, outcome.pico, outcome.cost)


def _signs(outcome: Outcome, row: TokenRow | Refusal | None) -> Iterator[Sign]:
    if outcome.cost is not None and outcome.cost > outcome.worst_pico:
        yield Sign.OVERCHARGED
    if outcome.fate is Fate.UNKNOWN:
        yield from (Sign.ERROR, Sign.REFUSED)
    if isinstance(row, Refusal):
        yield Sign.REFUSED
        if (sign := SIGNS_OF.get(row.reason)) is not None:
            yield sign
    if isinstance(answer := outcome.answer, Completion):
        yield from _of_text(answer)


def _of_text(answer: Completion) -> Iterator[Sign]:
    if answer.finish_reason == "length" or (answer.native_finish_reason or "").lower() in CUT:
        yield Sign.LENGTH_CUT
    if any(is_loop(text) for text in (answer.reasoning, answer.content) if text):
        yield Sign.LOOP
    if not (answer.reasoning or answer.content or answer.tool_calls):
        yield Sign.EMPTY


def trip_message(trip: Trip, *, emulated: bool) -> str:
    """What a user is told of a trip: what it was, which rows show it, what they cost."""
    shown = f". Rows that show it: {', '.join(trip.rows)}" if trip.rows else ""
    spent = f"${usd_text(trip.spent_pico)}{' (emulated)' * emulated}"
    return f"the breaker stopped this run: {trip.sentence}{shown}. Spent since the first: {spent}"
