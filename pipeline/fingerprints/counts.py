"""What counts say of a route's control tokens: is the end token counted, and is `</think>`.

Guarantees: a count names a value only where the answer's text, encoded again, leaves no other. An answer whose deltas
spell other tokens than its text has no say in it.

Whether counts are of the sampled ids, and where thinking is shown that was never closed.

Guarantees: an equality that the text encoded again would give as well proves nothing: `count_native` is proven only
where `TELLING` answers have another count than their text, be it by control tokens that no text shows, by another
tokenisation in their deltas, or by a cut at the limit. A recount that knows of the hidden tokens, too, is told apart by
the last two alone: one answer whose count is its text's and theirs, where others were sampled, speaks against
it by its bytes, and undoes all the rest.

How often a route's answers are another tokenisation of the same length, which `counted` takes for the canonical one.

Guarantees: measured on streams whose deltas are their tokens, one by one, and of those on the answers whose count
closes with the text encoded again, since `counted` takes no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.base.binomial import clopper_pearson_upper
from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.observations import Observation, TokenSum, hides_reasoning, named, silent
from pipeline.fingerprints.votes import ENOUGH, Learned, Vote, tally
from pipeline.formats.format import Format, Opener
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Json, RefusedError

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

    def hidden(self, total: TokenSum) -> int | None:
        """Tokens that the route counts beside the text of an answer; None where that is not known."""
        end = self.end_tools if total.section else self.end
        if (total.ended and not isinstance(end, bool)) or (total.think and not isinstance(self.close, bool)):
            return None
        return (total.ended if end else 0) + (total.think if self.close else 0)

    def over(self, total: TokenSum) -> int | None:
        """Tokens that were counted and that neither its text nor a control token explains; None where one may."""
        hidden = self.hidden(total)
        if hidden is not None:
            return total.beside - hidden
        over = total.beside - total.think - total.ended
        return over if over > 0 else None


def count_traits(seen: Sequence[Observation]) -> dict[TraitName, Learned]:
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


def _end(seen: Sequence[Observation]) -> Learned | None:
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


def _tells_close(one: Observation, *, counted: bool) -> bool:
    """Whether an answer without an end token has as many tokens as if `</think>` is counted, or is not."""
    total = one.sum
    if total is None or total.ended or not total.closed or not total.think or not total.canonical or total.space:
        return False
    return total.extra == (total.think if counted else 0)


def _end_ballots(seen: Sequence[Observation], *, thinking: bool) -> Iterator[Vote]:
    for one in seen:
        if one.ended and not one.completion.tool_calls and (thinking or one.opener is Opener.NOBODY):
            if one.sum is None:
                yield Vote(one.exchange.id, None, one.size, one.blank)
            elif not one.sum.section:
                yield _end_ballot(one, one.sum)


def _end_ballot(one: Observation, total: TokenSum) -> Vote:
    if not total.canonical:
        return silent(one, f"its deltas spell {total.spelled} tokens, its text is {total.text}")
    values = {0: False, total.think + 1: True}
    if total.think > 1:
        values |= {1: True, total.think: False}
    return _read(one, total, total.extra, values)


def _close(seen: Sequence[Observation], end: Learned | None) -> Learned | None:
    learned = tally(_close_ballots(seen, end.value if end else None))
    lacks = () if end and end.trait.proven else ("end_token_counted is not proven",)
    return learned and learned.lacking(lacks)


def _close_ballots(seen: Sequence[Observation], end: Json) -> Iterator[Vote]:
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


def _tool_end_ballots(seen: Sequence[Observation], close: Json) -> Iterator[Vote]:
    for one in seen:
        total = one.sum
        if one.completion.tool_calls and one.ended and total is None:
            yield Vote(one.exchange.id, None, one.size, one.blank)
        elif total is not None and total.section and total.ended:
            yield _tool_end_ballot(one, total, close)


def _tool_end_ballot(one: Observation, total: TokenSum, close: Json) -> Vote:
    if total.think and not isinstance(close, bool):
        return silent(one, "whether </think> is counted is not known")
    rest = total.extra - (total.think if close else 0)
    if rest in (0, 1):
        return named(one, rest == 1, f"{total.extra} beside the text and the grammar of its calls")
    return silent(one, f"{rest} beside the text and the grammar of its calls: ids or arguments are not the model's")


def _read(one: Observation, total: TokenSum, rest: int, values: Mapping[int, bool]) -> Vote:
    """The value that so many tokens beside the text name, if they do whether its white space was added or not."""
    why = f"{total.extra} beside the text"
    if rest in values:
        if values.get(rest + total.space, values[rest]) is not values[rest]:
            return silent(one, f"{why}, or {total.extra + total.space} if its white space was added")
        return named(one, values[rest], why, certain=total.certain)
    if 0 < rest - max(values) <= STRIPPED:
        return silent(one, f"{why}: white space that was stripped would explain it")
    return silent(one, why)


def native_traits(seen: Sequence[Observation], counting: Counting, *, end_proven: bool) -> dict[TraitName, Learned]:
    """Both traits; `count_native` also where no answer says anything: its value is null then, and opens nothing."""
    unclosed = tally(_unclosed_ballots(seen))
    found = {TraitName.COUNT_NATIVE: _native(seen, counting, end_proven=end_proven)}
    return found if unclosed is None else {**found, TraitName.UNCLOSED: unclosed}


def _native(seen: Sequence[Observation], counting: Counting, *, end_proven: bool) -> Learned:
    pairs = [pair for one in seen for pair in _native_ballots(one, counting)]
    lacks = []
    if (told := sum(tells and ballot.value is True for ballot, tells in pairs)) < TELLING:
        lacks.append(f"{told} of {TELLING} answers would have another count if their text were encoded again")
    if counting.end is True and not end_proven:
        lacks.append("end_token_counted is not proven")
    learned = tally((ballot for ballot, _ in pairs), worst=(False,))
    return (learned or Learned(Trait(None, 0, proven=False))).lacking(lacks)


def _native_ballots(one: Observation, counting: Counting) -> Iterator[tuple[Vote, bool]]:
    """At most one ballot, and whether a recount of the text would have given another count."""
    total = one.sum
    hidden = None if total is None else counting.hidden(total)
    if total is None or hidden is None:
        return
    again = total.text + hidden
    if total.spelled is not None and total.spelled != total.text:
        told = {total.spelled + hidden: True, again: False}.get(total.counted)
        why = f"its deltas spell {total.spelled} tokens, its text is {total.text}, {total.counted} are counted"
        yield Vote(one.exchange.id, told, one.size, why, certain=told is not None), True
    elif not total.ended and one.max_tokens is not None:
        told = True if total.counted == one.max_tokens else False if total.counted == again else None
        why = f"cut at {one.max_tokens}, {total.counted} are counted, its text encoded again makes {again}"
        certain = told is False
        yield Vote(one.exchange.id, told, one.size, why, certain=certain), total.counted != again
    elif total.ended and total.counted == again and hidden and not _adds_begin(one.fmt):
        yield named(one, value=True, why=f"{hidden} beside the text, which no text shows"), True


def _unclosed_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Answers that were cut while they thought: in which field that is shown."""
    for one in seen:
        reasoning, content = one.completion.reasoning or "", one.completion.content or ""
        if one.ended is not False or bool(reasoning) == bool(content) or one.completion.tool_calls:
            continue
        if reasoning and one.sum is not None:
            if one.sum.extra in (0, one.sum.think):
                yield named(one, "reasoning", "cut, with reasoning alone")
        elif content and one.opener is None and not hides_reasoning(one.request) and _is_all(one, content):
            yield named(one, "content", "cut, with content alone, though it was to think")


def _is_all(one: Observation, content: str) -> bool:
    """Whether the count leaves no room for a hidden reasoning."""
    opener = one.model.opener(one.fmt, thinking=True)
    begun = len(one.fmt.opening_ids) if opener is Opener.MODEL else 0
    try:
        return one.carries(Fidelity.TEXT) and one.size - len(one.fmt.tokenizer.encode(content)) in (0, begun)
    except RefusedError:
        return False


@cache
def _adds_begin_at(directory: Path) -> bool:
    try:
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("add_bos_token") is True


def _adds_begin(fmt: Format) -> bool:
    """Whether the family's own tokenizer puts a token before any text: a recount is then one more, too."""
    return _adds_begin_at(fmt.tokenizer.directory)


def same_count_traits(seen: Sequence[Observation], counting: Counting) -> dict[TraitName, Learned]:
    """`{wrong, n, upper95}`, with the wrong ones told; nothing where no deltas are tokens."""
    spelled = [one for one in seen if one.sum and one.sum.spelled == one.sum.text and _closes(one, counting)]
    if not spelled:
        return {}
    wrong = [one for one in spelled if one.sum and not one.sum.canonical]
    n = len(spelled)
    value: Json = {"wrong": len(wrong), "n": n, "upper95": round(clopper_pearson_upper(len(wrong), n), 6)}
    lacks = () if n >= ENOUGH else (f"{n} of {ENOUGH} answers",)
    against = tuple(named(one, None, "its deltas spell as many tokens, and others", certain=True) for one in wrong)
    return {TraitName.SAME_COUNT_MISMATCH: Learned(Trait(value, n, proven=not lacks), against, lacks)}


def _closes(one: Observation, counting: Counting) -> bool:
    hidden = counting.hidden(one.sum) if one.sum else None
    return one.sum is not None and hidden is not None and one.sum.extra == hidden
