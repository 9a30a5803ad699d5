"""What a route does to white space beside control tokens: keeps it, strips it, or adds some.

Guarantees: white space that is there may have been added, and what is not there may have been stripped. `kept` is
proven only where counts close with what is there, at each edge that answers have, and where no count is one that
stripped white space would explain; and where the route does not count every control token, only if that white space
makes now more tokens and now fewer: what a route adds, it adds always. Where content ends before parsed calls is no
edge here: what a parser of calls strips there stays untold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

from pipeline.fingerprints.counts import STRIPPED, TELLING, Counting
from pipeline.fingerprints.exchanges import Aspect
from pipeline.fingerprints.observations import Observed, named
from pipeline.fingerprints.votes import Ballot, Learned, tally
from pipeline.proof.answer import texts


class Edge(StrEnum):
    """Where white space may stand beside a control token; its name in sentences."""

    REASONING_START = "the start of reasoning"
    REASONING_END = "the end of reasoning"
    CONTENT_START = "the start of content"
    CONTENT_END = "the end of content"


def seam(seen: Sequence[Observed], counting: Counting) -> Learned | None:
    """The trait, from whole answers of copies that carry white space."""
    whole = [one for one in seen if one.carries(Aspect.TEXT, Aspect.SPACE) and one.ended]
    learned = tally(ballot for one in whole if (ballot := _ballot(one, counting)) is not None)
    if learned is None or learned.value != "kept":
        return learned
    closing = [one for one in whole if one.sum is not None and counting.over(one.sum) == 0]
    return learned.lacking((*_stripped(learned), *_unseen(whole, closing), *_unvaried(closing, counting)))


def _stripped(learned: Learned) -> Iterator[str]:
    """One answer whose count closes only with white space that is not there is enough: no vote outweighs it."""
    if many := sum(ballot.value == "stripped" for ballot in learned.against):
        yield f"the count of {many} closes only with white space that was stripped"


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
    """Edges that the route's answers have, and at which too few of those whose count closes show white space.

    A count tells nothing of an edge where none was seen: `.` and `.` with a line feed are one token each, and where
    some models always write line feeds, a route that strips them looks like one that counts a control token more.
    """
    had = {edge for one in whole for edge in _edges(one)}
    thinks = Edge.REASONING_END in had
    shown = Counter(
        edge
        for one in closing
        for edge, spaced in _edges(one).items()
        if spaced and (one.completion.reasoning or not thinks or edge is not Edge.CONTENT_START)
    )
    for edge in Edge:
        if edge in had and shown[edge] < TELLING:
            yield f"{shown[edge]} of {TELLING} answers whose count closes show white space at {edge}"


def _edges(one: Observed) -> dict[Edge, bool]:
    """The edges that the answer has, and whether white space stands there; not where content ends before calls."""
    reasoning, content = one.completion.reasoning or "", one.completion.content or ""
    found: dict[Edge, bool] = {}
    if reasoning:
        found |= {Edge.REASONING_START: reasoning[0].isspace(), Edge.REASONING_END: reasoning[-1].isspace()}
    if content:
        found[Edge.CONTENT_START] = content[0].isspace()
        if not one.completion.tool_calls:
            found[Edge.CONTENT_END] = content[-1].isspace()
    return found


def _unvaried(closing: Sequence[Observed], counting: Counting) -> Iterator[str]:
    """Shapes of answers with uncounted control tokens, in which added white space would look like one of them."""
    shapes: dict[tuple[int, int], Counter[int]] = {}
    for one in closing:
        if one.sum is not None and counting.hidden(one.sum) != one.sum.think + one.sum.ended:
            shapes.setdefault((one.sum.think, one.sum.ended), Counter())[one.sum.space] += 1
    for costs in shapes.values():
        if set(costs) != {0} and costs.total() - max(costs.values()) < TELLING:
            yield "its white space always makes as many tokens, so it may be added and another token not counted"
