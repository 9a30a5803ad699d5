"""What answers show of a route by their bytes: white space, deltas, markers in the text.

Guarantees: white space is judged only on copies that carry it, deltas only where they are long enough to tell.

What a route does to white space beside control tokens: keeps it, strips it, or adds some.

Guarantees: white space that is there may have been added, and what is not there may have been stripped. `kept` is
proven only where counts close with what is there, at each edge that answers have, and where no count is one that
stripped white space would explain; and where the route does not count every control token, only if that white space
makes now more tokens and now fewer: what a route adds, it adds always. Where content ends before parsed calls is no
edge here: what a parser of calls strips there stays untold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

from pipeline.fingerprints.counts import STRIPPED, TELLING, Counting
from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.observations import Observation, named, silent
from pipeline.fingerprints.votes import Learned, Vote, tally
from pipeline.proof.answer import delta_texts, texts
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.stream_deltas import crossed_boundary, is_cumulative

SHORT = 40
"""Characters below which the deltas of an answer say nothing: one word is one token and one batch."""


def shown_traits(seen: Sequence[Observation], counting: Counting, *, stream: bool) -> dict[TraitName, Learned]:
    """The traits that bytes tell, each with what was learned."""
    found = {
        TraitName.SEAM: seam(seen, counting),
        TraitName.LINE_ENDS: tally(_line_end_ballots(seen)),
        TraitName.DELTAS: tally(_delta_ballots(seen, counting) if stream else _body_ballots(seen)),
        TraitName.MARKERS: tally(_marker_ballots(seen)),
        TraitName.LEAKS: tally(_leak_ballots(seen), worst=(True,)),
    }
    return {name: learned for name, learned in found.items() if learned is not None}


def _line_end_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Line ends of both kinds in one answer: whoever changes them makes them alike."""
    for one in seen:
        text = "".join(texts(one.completion))
        if not one.carries(Fidelity.TEXT, Fidelity.SPACE) or "\r" not in text:
            continue
        if re.search(r"(?<!\r)\n", text):
            yield named(one, "kept", "line ends of both kinds came", certain=True)
        else:
            yield silent(one, "its line ends are all alike, so they may have been changed")


def _body_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    for one in seen:
        yield named(one, "none", "one body", certain=True)


def _delta_ballots(seen: Sequence[Observation], counting: Counting) -> Iterator[Vote]:
    for one in seen:
        text = "".join(texts(one.completion))
        if not one.carries(Fidelity.TEXT, Fidelity.DELTAS) or one.completion.tool_calls or len(text) < SHORT:
            continue
        if one.sum is None:
            yield Vote(one.exchange.id, None, one.size, one.blank)
        elif one.sum.spelled is not None and (one.sum.canonical or _closes_spelled(one, counting)):
            yield named(one, "tokens", f"{one.sum.spelled} deltas are as many tokens", certain=True)
        elif _are_tokens_by_count(one, counting):
            yield named(one, "tokens", "each delta is one token or another, and their number closes the count")
        elif one.sum.section:
            yield silent(one, "its text holds markers")
        else:
            yield _other_deltas(one)


def _closes_spelled(one: Observation, counting: Counting) -> bool:
    hidden = counting.hidden(one.sum) if one.sum else None
    return one.sum is not None and hidden is not None and one.sum.spelled == one.sum.counted - hidden


def _are_tokens_by_count(one: Observation, counting: Counting) -> bool:
    """Whether each delta is a token, though which one is not certain: half a character may stand in the one before."""
    hidden = counting.hidden(one.sum) if one.sum else None
    deltas = one.completion.deltas or ()
    markers = one.fmt.tool_markers()
    whole = one.fmt.tokenizer.id_of_bytes
    each = all(delta.text in markers or whole(delta.text.encode("utf-8", "surrogatepass")) for delta in deltas)
    return each and hidden is not None and one.size - hidden == len(deltas)


def _other_deltas(one: Observation) -> Vote:
    """Batches of tokens, or neither.

    Both show themselves among tokens: such a row is not proven by its deltas. Deltas that end inside tokens of the text
    encoded again may be of another tokenisation, and the row is refused.
    """
    for name, text in zip(("reasoning", "content"), texts(one.completion), strict=True):
        deltas = delta_texts(one.completion, name)
        tokens = one.fmt.tokenizer.encode(text)
        if is_cumulative(deltas) or crossed_boundary(one.fmt.tokenizer, tokens, deltas) is not None:
            return named(one, "rechunked", f"deltas of {name} end inside tokens", certain=True, excused=True)
    many, length = len(one.completion.deltas or ()), one.sum.text if one.sum else 0
    return named(one, "batches", f"{many} deltas for {length} tokens", certain=True, excused=True)


_UNMARKED = re.compile(r"functions\.[\w.-]+:\d+")


def _marker_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Answers to prompts that declare tools in a message of their own, with no `tools` sent."""
    for one in seen:
        messages = one.request.get("messages")
        listed = messages if isinstance(messages, list) else []
        roles = [message.get("role") for message in listed if isinstance(message, dict)]
        if one.tools_sent or "tool_declare" not in roles or not one.carries(Fidelity.TEXT):
            continue
        content = one.completion.content or ""
        if one.completion.tool_calls:
            yield named(one, "parsed", "calls came parsed", certain=True)
        elif any(name in content for name in one.fmt.tool_markers()):
            yield named(one, "raw", "markers stand in the text", certain=True)
        elif _UNMARKED.search(content):
            yield named(one, "stripped", "a call without its markers stands in the text", certain=True)


def _leak_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Answers to requests with `tools`: whether a control token's name stands in their text all the same."""
    for one in seen:
        if not one.tools_sent or not one.carries(Fidelity.TEXT):
            continue
        names = (*one.fmt.tool_markers(), *_think_names(one))
        text = "".join(texts(one.completion))
        found = next((name for name in names if name in text), None)
        yield named(one, found is not None, f"{found} stands in the text" if found else "no marker", certain=True)


def _think_names(one: Observation) -> tuple[str, ...]:
    tokens = (one.fmt.think_open_id, one.fmt.think_close_id)
    return tuple(name for token in tokens if (name := one.fmt.tokenizer.name_of(token)) and "reserved" not in name)


class Edge(StrEnum):
    """Where white space may stand beside a control token; its name in sentences."""

    REASONING_START = "the start of reasoning"
    REASONING_END = "the end of reasoning"
    CONTENT_START = "the start of content"
    CONTENT_END = "the end of content"


def seam(seen: Sequence[Observation], counting: Counting) -> Learned | None:
    """The trait, from whole answers of copies that carry white space."""
    whole = [one for one in seen if one.carries(Fidelity.TEXT, Fidelity.SPACE) and one.ended]
    learned = tally(ballot for one in whole if (ballot := _ballot(one, counting)) is not None)
    if learned is None or learned.value != "kept":
        return learned
    closing = [one for one in whole if one.sum is not None and counting.over(one.sum) == 0]
    return learned.lacking((*_stripped(learned), *_unseen(whole, closing), *_unvaried(closing, counting)))


def _stripped(learned: Learned) -> Iterator[str]:
    """One answer whose count closes only with white space that is not there is enough: no vote outweighs it."""
    if many := sum(ballot.value == "stripped" for ballot in learned.against):
        yield f"the count of {many} closes only with white space that was stripped"


def _ballot(one: Observation, counting: Counting) -> Vote | None:
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


def _unseen(whole: Sequence[Observation], closing: Sequence[Observation]) -> Iterator[str]:
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


def _edges(one: Observation) -> dict[Edge, bool]:
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


def _unvaried(closing: Sequence[Observation], counting: Counting) -> Iterator[str]:
    """Shapes of answers with uncounted control tokens, in which added white space would look like one of them."""
    shapes: dict[tuple[int, int], Counter[int]] = {}
    for one in closing:
        if one.sum is not None and counting.hidden(one.sum) != one.sum.think + one.sum.ended:
            shapes.setdefault((one.sum.think, one.sum.ended), Counter())[one.sum.space] += 1
    for costs in shapes.values():
        if set(costs) != {0} and costs.total() - max(costs.values()) < TELLING:
            yield "its white space always makes as many tokens, so it may be added and another token not counted"
