"""What a route does to white space beside control tokens: keeps it, strips it, or adds some.

Guarantees: white space that is there may have been added, and what is not there may have been stripped. `kept` is
proven only where counts close with what is there, in each field that answers show; and where the route does not count
every control token, only if that white space makes now more tokens and now fewer: what a route adds, it adds always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.learning.ballots import Ballot, Learned, tally
from pipeline.learning.counts import STRIPPED, TELLING, Counting
from pipeline.learning.exchanges import Aspect
from pipeline.learning.observed import Observed, named
from pipeline.readings import texts


def seam(seen: Sequence[Observed], counting: Counting) -> Learned | None:
    """The trait, from whole answers of copies that carry white space."""
    whole = [one for one in seen if one.carries(Aspect.TEXT, Aspect.SPACE) and one.ended]
    learned = tally(ballot for one in whole if (ballot := _ballot(one, counting)) is not None)
    if learned is None or learned.value != "kept":
        return learned
    closing = [one for one in whole if one.sum is not None and counting.over(one.sum) == 0]
    return learned.lacking((*_unseen(whole, closing), *_unvaried(closing, counting)))


def _ballot(one: Observed, counting: Counting) -> Ballot | None:
    over = None if one.sum is None else counting.over(one.sum)
    if one.sum is not None and over is not None and over < 0 and over == -one.sum.space:
        return named(one, "added", f"{-over} tokens fewer were counted than its white space makes")
    if over is not None and 0 < over <= STRIPPED and not one.completion.tool_calls:
        return named(one, "stripped", f"{over} tokens more were counted than its text explains")
    if over in (0, None) and any(_is_spaced(text) for text in texts(one.completion)):
        return named(one, "kept", "white space stands beside a control token", certain=True)
    return None


def _is_spaced(text: str) -> bool:
    return text != text.strip()


def _unseen(whole: Sequence[Observed], closing: Sequence[Observed]) -> Iterator[str]:
    """Fields that answers show, and whose white space too few counts close with.

    After a thinking, content must begin with it: some models always write the same line feeds there, and a route that
    strips them looks like one that counts a control token more.
    """
    thought = [one for one in closing if one.completion.reasoning]
    if any(one.completion.reasoning for one in whole):
        led = sum((one.completion.content or "x")[0].isspace() for one in thought)
        kept = sum(_is_spaced(one.completion.reasoning or "") for one in thought)
        if min(led, kept) < TELLING:
            yield f"of {TELLING} answers whose count closes, {kept} show white space in reasoning, {led} before content"
    elif (kept := sum(_is_spaced(one.completion.content or "") for one in closing)) < TELLING:
        yield f"of {TELLING} answers whose count closes, {kept} show white space in content"


def _unvaried(closing: Sequence[Observed], counting: Counting) -> Iterator[str]:
    """Shapes of answers with uncounted control tokens, in which added white space would look like one of them."""
    shapes: dict[tuple[int, int], Counter[int]] = {}
    for one in closing:
        if one.sum is not None and counting.hidden(one.sum) != one.sum.think + one.sum.ended:
            shapes.setdefault((one.sum.think, one.sum.ended), Counter())[one.sum.space] += 1
    for costs in shapes.values():
        if set(costs) != {0} and costs.total() - max(costs.values()) < TELLING:
            yield "its white space always makes as many tokens, so it may be added and another token not counted"
