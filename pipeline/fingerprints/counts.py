"""Learn from token counts what a route counts.

Guarantees: a count names a value only where the answer's text, encoded again, leaves no other. Whether control tokens
are counted is not learned from an answer whose deltas spell other tokens than its text.

`count_native` says that counts are of the sampled ids. An equality that the text encoded again would give as well does
not prove it: `WITNESSES` answers must have another count than their text, because of control tokens that no text
shows, another tokenisation in their deltas, or a cut at the limit. A recount that adds the hidden tokens differs only
in the last two. So one answer is enough to refute the trait, where the count is of the text with the hidden tokens,
and other tokens were sampled.

`same_count_mismatch` says how often an answer is another tokenisation of the same length, which the grade `counted`
takes for the canonical one. It is measured on streams whose deltas are tokens, and there on the answers whose count
closes with the text encoded again, since `counted` takes no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.binomial import clopper_pearson_upper
from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.models import tokenizer_config
from pipeline.fingerprints.observations import Observation, TokenSum, hides_reasoning
from pipeline.fingerprints.votes import ENOUGH, Learned, Vote, tally
from pipeline.formats.format import Opener
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Json, RefusedError

WITNESSES = 3
"""Answers that are required where a single one could be chance."""
MAX_STRIPPED = 2
"""White space that a route strips beside `</think>` is a token or two."""


@dataclass(frozen=True, slots=True)
class Counting:
    """The control tokens that a route counts; None if unknown."""

    end: Json = None
    end_tools: Json = None
    close: Json = None

    def hidden(self, total: TokenSum) -> int | None:
        """Return the hidden tokens that are counted; None if unknown."""
        end = self.end_tools if total.section else self.end
        if (total.ended and not isinstance(end, bool)) or (total.think and not isinstance(self.close, bool)):
            return None
        return (total.ended if end else 0) + (total.think if self.close else 0)

    def closes(self, total: TokenSum, shown: int | None) -> bool:
        """Whether `shown` tokens and the hidden ones make the count."""
        hidden = self.hidden(total)
        return shown is not None and hidden is not None and total.counted == shown + hidden

    def unexplained(self, total: TokenSum) -> int | None:
        """Return the counted tokens that nothing known explains.

        None where a control token may explain them.
        """
        hidden = self.hidden(total)
        if hidden is not None:
            return total.beside - hidden
        rest = total.beside - total.think - total.ended
        return rest if rest > 0 else None


# Control tokens in the count


def count_traits(observations: Sequence[Observation]) -> dict[TraitName, Learned]:
    """Learn whether end tokens and `</think>` are counted."""
    end = end_trait(observations)
    close = tally(think_close_votes(observations, end.value if end else None))
    if close is not None and not (end and end.trait.proven):
        close = close.lacking(("end_token_counted is not proven",))
    found = {
        TraitName.END_COUNTED: end,
        TraitName.THINK_CLOSE_COUNTED: close,
        TraitName.END_COUNTED_TOOLS: tally(tool_end_votes(observations, close.value if close else None)),
    }
    return {name: learned for name, learned in found.items() if learned is not None}


def counting_of(traits: Mapping[TraitName, Learned]) -> Counting:
    """Return how a route with these traits counts."""
    names = (TraitName.END_COUNTED, TraitName.END_COUNTED_TOOLS, TraitName.THINK_CLOSE_COUNTED)
    return Counting(*(traits[name].value if name in traits else None for name in names))


def end_trait(observations: Sequence[Observation]) -> Learned | None:
    """Learn whether the end token is counted.

    Answers without thinking hide nothing else, so the others are used only where there is none of those. With thinking,
    `</think>` and the end token look like other tokens that are always hidden, such as a line feed that is always
    stripped; then `WITNESSES` answers that were cut between the two are required as well.
    """
    if plain := list(end_votes(observations, thinking=False)):
        return tally(plain)
    learned = tally(end_votes(observations, thinking=True))
    if learned is None or not isinstance(learned.value, bool):
        return learned
    sums = [one.sum for one in observations if one.sum and one.sum.canonical and not one.sum.space]
    cut = [total for total in sums if total.closed and total.think and not total.ended]
    witnesses = sum(total.extra == (total.think if learned.value else 0) for total in cut)
    lack = f"{witnesses} of {WITNESSES} answers that were cut after </think>"
    return learned.lacking(() if witnesses >= WITNESSES else (lack,))


def end_votes(observations: Sequence[Observation], *, thinking: bool) -> Iterator[Vote]:
    """Vote on the end token by ended answers without calls."""
    for one in observations:
        total = one.sum
        if not one.ended or one.completion.tool_calls or not (thinking or one.opener is Opener.NOBODY):
            continue
        if total is None:
            yield one.abstain(one.why_no_sum)
        elif total.section:
            continue
        elif not total.canonical:
            yield one.abstain(f"its deltas spell {total.spelled} tokens, its text is {total.text}")
        else:
            values = {0: False, total.think + 1: True}
            if total.think > 1:
                values |= {1: True, total.think: False}
            yield _vote_by_count(one, total, total.extra, values)


def think_close_votes(observations: Sequence[Observation], end: Json) -> Iterator[Vote]:
    """Vote on `</think>`, by answers that thought and said something.

    `end`: whether the end token is counted. Where that is unknown, only answers without one name a value.
    """
    for one in observations:
        total = one.sum
        if total is None or not total.closed or not total.think or total.section:
            continue
        if not total.canonical:
            yield one.abstain(f"its deltas spell {total.spelled} tokens, its text is {total.text}")
        elif total.ended and not isinstance(end, bool):
            yield one.abstain("whether the end token is counted is not known")
        else:
            rest = total.extra - (total.ended if end else 0)
            yield _vote_by_count(one, total, rest, {0: False, total.think: True})


def tool_end_votes(observations: Sequence[Observation], close: Json) -> Iterator[Vote]:
    """Vote on the end token of turns that call tools.

    `close`: whether `</think>` is counted.
    """
    for one in observations:
        total = one.sum
        if one.completion.tool_calls and one.ended and total is None:
            yield one.abstain(one.why_no_sum)
        elif total is None or not total.section or not total.ended:
            continue
        elif total.think and not isinstance(close, bool):
            yield one.abstain("whether </think> is counted is not known")
        else:
            rest = total.extra - (total.think if close else 0)
            if rest in (0, 1):
                yield one.vote(rest == 1, f"{total.extra} beside the text and the grammar of its calls")
            else:
                why = f"{rest} beside the text and the grammar of its calls: ids or arguments are not the model's"
                yield one.abstain(why)


def _vote_by_count(one: Observation, total: TokenSum, rest: int, values: Mapping[int, bool]) -> Vote:
    """Vote for the value that `rest` tokens name.

    Abstain where white space that was added or stripped would explain the count as well.
    """
    why = f"{total.extra} beside the text"
    if rest in values:
        if values.get(rest + total.space, values[rest]) is not values[rest]:
            return one.abstain(f"{why}, or {total.extra + total.space} if its white space was added")
        return one.vote(values[rest], why, certain=total.certain)
    if 0 < rest - max(values) <= MAX_STRIPPED:
        return one.abstain(f"{why}: white space that was stripped would explain it")
    return one.abstain(why)


# Native counts


def native_traits(
    observations: Sequence[Observation], counting: Counting, *, end_proven: bool
) -> dict[TraitName, Learned]:
    """Learn `count_native`, and where unclosed thinking is shown.

    `count_native` is always there: where no answer says anything, its value is null and it proves nothing.
    """
    votes = [pair for one in observations if (pair := native_vote(one, counting)) is not None]
    lacks = []
    if (witnesses := sum(differs and vote.value is True for vote, differs in votes)) < WITNESSES:
        lacks.append(f"{witnesses} of {WITNESSES} answers would have another count if their text were encoded again")
    if counting.end is True and not end_proven:
        lacks.append("end_token_counted is not proven")
    native = tally((vote for vote, _ in votes), worst=(False,)) or Learned(Trait(None, 0, proven=False))
    unclosed = tally(unclosed_votes(observations))
    found = {TraitName.COUNT_NATIVE: native.lacking(lacks)}
    return found if unclosed is None else {**found, TraitName.UNCLOSED: unclosed}


def native_vote(one: Observation, counting: Counting) -> tuple[Vote, bool] | None:
    """Vote on `count_native`, and say whether a recount differs."""
    total = one.sum
    hidden = None if total is None else counting.hidden(total)
    if total is None or hidden is None:
        return None
    recount = total.text + hidden
    if total.spelled is not None and total.spelled != total.text:
        native = {total.spelled + hidden: True, recount: False}.get(total.counted)
        why = f"its deltas spell {total.spelled} tokens, its text is {total.text}, {total.counted} are counted"
        return one.vote(native, why, certain=native is not None), True
    if not total.ended and one.max_tokens is not None:
        native = True if total.counted == one.max_tokens else False if total.counted == recount else None
        why = f"cut at {one.max_tokens}, {total.counted} are counted, its text encoded again makes {recount}"
        return one.vote(native, why, certain=native is False), total.counted != recount
    # Where the tokenizer puts a token before any text, a recount is one more as well.
    adds_begin = tokenizer_config(one.fmt.tokenizer.directory).get("add_bos_token") is True
    if total.ended and total.counted == recount and hidden and not adds_begin:
        return one.vote(value=True, why=f"{hidden} beside the text, which no text shows"), True
    return None


def unclosed_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on the field that shows unclosed thinking."""
    for one in observations:
        reasoning, content = one.completion.reasoning or "", one.completion.content or ""
        if one.ended is not False or bool(reasoning) == bool(content) or one.completion.tool_calls:
            continue
        if reasoning and one.sum is not None:
            if one.sum.extra in (0, one.sum.think):
                yield one.vote("reasoning", "cut, with reasoning alone")
        elif content and one.opener is None and not hides_reasoning(one.request) and _is_all(one, content):
            yield one.vote("content", "cut, with content alone, though it was to think")


def _is_all(one: Observation, content: str) -> bool:
    """Whether the count leaves no room for hidden reasoning."""
    opener = one.model.opener(one.fmt, thinking=True)
    begun = len(one.fmt.opening_ids) if opener is Opener.MODEL else 0
    try:
        return one.carries(Fidelity.TEXT) and one.size - len(one.fmt.tokenizer.encode(content)) in (0, begun)
    except RefusedError:
        return False


# Other tokenisations of the same length


def same_count_traits(observations: Sequence[Observation], counting: Counting) -> dict[TraitName, Learned]:
    """Measure the rate of other tokenisations: `{wrong, n, upper95}`.

    Empty where no deltas are tokens.
    """
    spelled = [
        one
        for one in observations
        if one.sum and one.sum.spelled == one.sum.text and counting.closes(one.sum, one.sum.text)
    ]
    if not spelled:
        return {}
    wrong = [one for one in spelled if one.sum and not one.sum.canonical]
    n = len(spelled)
    value: Json = {"wrong": len(wrong), "n": n, "upper95": round(clopper_pearson_upper(len(wrong), n), 6)}
    lacks = () if n >= ENOUGH else (f"{n} of {ENOUGH} answers",)
    against = tuple(one.vote(None, "its deltas spell as many tokens, and others", certain=True) for one in wrong)
    return {TraitName.SAME_COUNT_MISMATCH: Learned(Trait(value, n, proven=not lacks), against, lacks)}
