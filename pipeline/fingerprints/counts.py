"""What counts say of a route's control tokens: is the end token counted, and is `</think>`.

Guarantees: a count names a value only where the answer's text, encoded again, leaves no other. An answer whose deltas
spell other tokens than its text has no say in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.fingerprints.observations import Observed, named, silent
from pipeline.fingerprints.sums import Sum
from pipeline.fingerprints.votes import Ballot, Learned, tally
from pipeline.formats.format import Opener
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json

TELLING = 3
"""So many answers are asked for, where one could be chance."""
STRIPPED = 2
"""White space that a route strips beside `</think>` is a token or two."""


@dataclass(frozen=True, slots=True)
class Counting:
    """What is known so far of how a route counts; None where no answer says."""

    end: Json = None
    end_tools: Json = None
    close: Json = None

    def hidden(self, total: Sum) -> int | None:
        """Tokens that the route counts beside the text of an answer; None where that is not known."""
        end = self.end_tools if total.section else self.end
        if (total.ended and not isinstance(end, bool)) or (total.think and not isinstance(self.close, bool)):
            return None
        return (total.ended if end else 0) + (total.think if self.close else 0)

    def over(self, total: Sum) -> int | None:
        """Tokens that were counted and that neither its text nor a control token explains; None where one may."""
        hidden = self.hidden(total)
        if hidden is not None:
            return total.beside - hidden
        over = total.beside - total.think - total.ended
        return over if over > 0 else None


def count_traits(seen: Sequence[Observed]) -> dict[TraitName, Learned]:
    """The traits that only counts tell, each with what was learned."""
    found: dict[TraitName, Learned | None] = {}
    end = found[TraitName.END_COUNTED] = _end(seen)
    close = found[TraitName.THINK_CLOSE_COUNTED] = _close(seen, end)
    found[TraitName.END_COUNTED_TOOLS] = tally(_tool_end_ballots(seen, close.value if close else None))
    return {name: learned for name, learned in found.items() if learned is not None}


def counting_of(traits: Mapping[TraitName, Learned]) -> Counting:
    """How the route counts, as far as these traits name it."""
    names = (TraitName.END_COUNTED, TraitName.END_COUNTED_TOOLS, TraitName.THINK_CLOSE_COUNTED)
    return Counting(*(traits[name].value if name in traits else None for name in names))


def _end(seen: Sequence[Observed]) -> Learned | None:
    """From answers without thinking, where nothing else is hidden; from the others only where there is none.

    Those cannot tell `</think>` and the end token from other tokens that are always hidden, such as a line feed that is
    always stripped: that is for answers to tell that were cut between the two.
    """
    if plain := list(_end_ballots(seen, thinking=False)):
        return tally(plain)
    learned = tally(_end_ballots(seen, thinking=True))
    if learned is None or not isinstance(learned.value, bool):
        return learned
    told = sum(_tells_close(one, counted=learned.value) for one in seen)
    return learned.lacking(() if told >= TELLING else (f"{told} of {TELLING} answers that were cut after </think>",))


def _tells_close(one: Observed, *, counted: bool) -> bool:
    """Whether an answer without an end token has as many tokens as if `</think>` is counted, or is not."""
    total = one.sum
    if total is None or total.ended or not total.closed or not total.think or not total.canonical or total.space:
        return False
    return total.extra == (total.think if counted else 0)


def _end_ballots(seen: Sequence[Observed], *, thinking: bool) -> Iterator[Ballot]:
    for one in seen:
        if one.ended and not one.completion.tool_calls and (thinking or one.opener is Opener.NOBODY):
            if one.sum is None:
                yield Ballot(one.exchange.id, None, one.size, one.blank)
            elif not one.sum.section:
                yield _end_ballot(one, one.sum)


def _end_ballot(one: Observed, total: Sum) -> Ballot:
    if not total.canonical:
        return silent(one, f"its deltas spell {total.spelled} tokens, its text is {total.text}")
    values = {0: False, total.think + 1: True}
    if total.think > 1:
        values |= {1: True, total.think: False}
    return _read(one, total, total.extra, values)


def _close(seen: Sequence[Observed], end: Learned | None) -> Learned | None:
    learned = tally(_close_ballots(seen, end.value if end else None))
    lacks = () if end and end.trait.proven else ("end_token_counted is not proven",)
    return learned and learned.lacking(lacks)


def _close_ballots(seen: Sequence[Observed], end: Json) -> Iterator[Ballot]:
    """Answers that thought and said something: with the end token known, or cut before it."""
    for one in seen:
        total = one.sum
        if total is None or not total.closed or not total.think or total.section:
            continue
        if not total.canonical:
            yield silent(one, f"its deltas spell {total.spelled} tokens, its text is {total.text}")
        elif total.ended and not isinstance(end, bool):
            yield silent(one, "whether the end token is counted is not known")
        else:
            rest = total.extra - (total.ended if end else 0)
            yield _read(one, total, rest, {0: False, total.think: True})


def _tool_end_ballots(seen: Sequence[Observed], close: Json) -> Iterator[Ballot]:
    for one in seen:
        total = one.sum
        if one.completion.tool_calls and one.ended and total is None:
            yield Ballot(one.exchange.id, None, one.size, one.blank)
        elif total is not None and total.section and total.ended:
            yield _tool_end_ballot(one, total, close)


def _tool_end_ballot(one: Observed, total: Sum, close: Json) -> Ballot:
    if total.think and not isinstance(close, bool):
        return silent(one, "whether </think> is counted is not known")
    rest = total.extra - (total.think if close else 0)
    if rest in (0, 1):
        return named(one, rest == 1, f"{total.extra} beside the text and the grammar of its calls")
    return silent(one, f"{rest} beside the text and the grammar of its calls: ids or arguments are not the model's")


def _read(one: Observed, total: Sum, rest: int, values: Mapping[int, bool]) -> Ballot:
    """The value that so many tokens beside the text name, if they do whether its white space was added or not."""
    why = f"{total.extra} beside the text"
    if rest in values:
        if values.get(rest + total.space, values[rest]) is not values[rest]:
            return silent(one, f"{why}, or {total.extra + total.space} if its white space was added")
        return named(one, values[rest], why, certain=total.certain)
    if 0 < rest - max(values) <= STRIPPED:
        return silent(one, f"{why}: white space that was stripped would explain it")
    return silent(one, why)
