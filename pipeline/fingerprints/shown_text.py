"""Learn what answers show of a route by their bytes.

Guarantees: white space is judged only on copies that carry it, deltas only where they are long enough to tell.

White space beside control tokens (the trait `seam`) that is there may have been added, and what is not there may have
been stripped. `kept` is proven only where counts close with what is there, at each edge that answers have, and where no
count is one that stripped white space would explain. Where the route does not count every control token, the white
space must also make a varying number of tokens: what a route adds, it adds always. The end of content before parsed
calls is not an edge here: what a parser of calls strips there remains unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

from pipeline.fingerprints.counts import MAX_STRIPPED, WITNESSES, Counting
from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.observations import Observation
from pipeline.fingerprints.votes import Learned, Vote, tally
from pipeline.proof.answer import delta_texts, texts
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.stream_deltas import crossed_boundary, is_cumulative

SHORT = 40
"""Characters below which the deltas of an answer say nothing: one word is one token and one batch."""


def shown_traits(observations: Sequence[Observation], counting: Counting, *, stream: bool) -> dict[TraitName, Learned]:
    """Learn the traits that bytes show."""
    bodies = (one.vote("none", "one body", certain=True) for one in observations)
    found = {
        TraitName.SEAM: seam_trait(observations, counting),
        TraitName.LINE_ENDS: tally(line_end_votes(observations)),
        TraitName.DELTAS: tally(delta_votes(observations, counting) if stream else bodies),
        TraitName.MARKERS: tally(marker_votes(observations)),
        TraitName.LEAKS: tally(leak_votes(observations), worst=(True,)),
    }
    return {name: learned for name, learned in found.items() if learned is not None}


# White space


class Edge(StrEnum):
    """A place beside a control token, in words."""

    REASONING_START = "the start of reasoning"
    REASONING_END = "the end of reasoning"
    CONTENT_START = "the start of content"
    CONTENT_END = "the end of content"


def seam_trait(observations: Sequence[Observation], counting: Counting) -> Learned | None:
    """Learn whether white space beside control tokens is kept."""
    whole = [one for one in observations if one.carries(Fidelity.TEXT, Fidelity.SPACE) and one.ended]
    learned = tally(vote for one in whole if (vote := seam_vote(one, counting)) is not None)
    if learned is None or learned.value != "kept":
        return learned
    closing = [one for one in whole if one.sum is not None and counting.unexplained(one.sum) == 0]
    lacks = [*_lacks_of_edges(whole, closing), *_lacks_of_variety(closing, counting)]
    # One answer whose count closes only with white space that is not there is enough: no vote outweighs it.
    if stripped := sum(vote.value == "stripped" for vote in learned.against):
        lacks.insert(0, f"the count of {stripped} closes only with white space that was stripped")
    return learned.lacking(lacks)


def seam_vote(one: Observation, counting: Counting) -> Vote | None:
    """Vote on white space; None where nothing tells."""
    rest = None if one.sum is None else counting.unexplained(one.sum)
    if one.sum is not None and rest is not None and rest < 0 and rest == -one.sum.space:
        return one.vote("added", f"{-rest} tokens fewer were counted than its white space makes")
    if rest is not None and 0 < rest <= MAX_STRIPPED and not one.completion.tool_calls:
        return one.vote("stripped", f"{rest} tokens more were counted than its text explains")
    if rest in (0, None) and any(text != text.strip() for text in texts(one.completion)):
        return one.vote("kept", "white space stands beside a control token", certain=True)
    return None


def _lacks_of_edges(whole: Sequence[Observation], closing: Sequence[Observation]) -> Iterator[str]:
    """Name the edges where too few answers show white space.

    A count says nothing of an edge where none was seen: `.` and `.` with a line feed are one token each, and where some
    models always write line feeds, a route that strips them looks like one that counts a control token more.
    """
    present = {edge for one in whole for edge in _edges(one)}
    thinks = Edge.REASONING_END in present
    spaced_edges = Counter(
        edge
        for one in closing
        for edge, spaced in _edges(one).items()
        if spaced and (one.completion.reasoning or not thinks or edge is not Edge.CONTENT_START)
    )
    for edge in Edge:
        if edge in present and spaced_edges[edge] < WITNESSES:
            yield f"{spaced_edges[edge]} of {WITNESSES} answers whose count closes show white space at {edge}"


def _edges(one: Observation) -> dict[Edge, bool]:
    """Return an answer's edges, and whether white space stands there."""
    reasoning, content = one.completion.reasoning or "", one.completion.content or ""
    found: dict[Edge, bool] = {}
    if reasoning:
        found |= {Edge.REASONING_START: reasoning[0].isspace(), Edge.REASONING_END: reasoning[-1].isspace()}
    if content:
        found[Edge.CONTENT_START] = content[0].isspace()
        if not one.completion.tool_calls:
            found[Edge.CONTENT_END] = content[-1].isspace()
    return found


def _lacks_of_variety(closing: Sequence[Observation], counting: Counting) -> Iterator[str]:
    """Name the shapes of answers whose white space never varies.

    Where a control token is not counted, added white space would look like that token being counted.
    """
    shapes: dict[tuple[int, int], Counter[int]] = {}
    for one in closing:
        if one.sum is not None and counting.hidden(one.sum) != one.sum.think + one.sum.ended:
            shapes.setdefault((one.sum.think, one.sum.ended), Counter())[one.sum.space] += 1
    for spaces in shapes.values():
        if set(spaces) != {0} and spaces.total() - max(spaces.values()) < WITNESSES:
            yield "its white space always makes as many tokens, so it may be added and another token not counted"


def line_end_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on line ends, by answers that show CR.

    Only line ends of both kinds in one answer prove that they are kept: a route that changes them makes them alike.
    """
    for one in observations:
        text = "".join(texts(one.completion))
        if not one.carries(Fidelity.TEXT, Fidelity.SPACE) or "\r" not in text:
            continue
        if re.search(r"(?<!\r)\n", text):
            yield one.vote("kept", "line ends of both kinds came", certain=True)
        else:
            yield one.abstain("its line ends are all alike, so they may have been changed")


# Deltas


def delta_votes(observations: Sequence[Observation], counting: Counting) -> Iterator[Vote]:
    """Vote on what one delta of a stream is."""
    for one in observations:
        text = "".join(texts(one.completion))
        if not one.carries(Fidelity.TEXT, Fidelity.DELTAS) or one.completion.tool_calls or len(text) < SHORT:
            continue
        total = one.sum
        if total is None:
            yield one.abstain(one.why_no_sum)
        elif total.spelled is not None and (total.canonical or counting.closes(total, total.spelled)):
            yield one.vote("tokens", f"{total.spelled} deltas are as many tokens", certain=True)
        elif _are_tokens_by_count(one, counting):
            yield one.vote("tokens", "each delta is one token or another, and their number closes the count")
        elif total.section:
            yield one.abstain("its text holds markers")
        else:
            yield _other_deltas(one)


def _are_tokens_by_count(one: Observation, counting: Counting) -> bool:
    """Whether deltas are tokens whose number closes the count.

    Which token is not certain: half a character may stand in the delta before.
    """
    deltas = one.completion.deltas or ()
    markers, id_of_bytes = one.fmt.tool_markers(), one.fmt.tokenizer.id_of_bytes
    each = all(delta.text in markers or id_of_bytes(delta.text.encode("utf-8", "surrogatepass")) for delta in deltas)
    return each and one.sum is not None and counting.closes(one.sum, len(deltas))


def _other_deltas(one: Observation) -> Vote:
    """Vote for batches of tokens, or neither tokens nor batches.

    Among tokens both are excused, as such a row is not proven by its deltas. Deltas that end inside tokens of the text
    encoded again may be of another tokenisation, and the row is refused.
    """
    for name, text in zip(("reasoning", "content"), texts(one.completion), strict=True):
        deltas = delta_texts(one.completion, name)
        tokens = one.fmt.tokenizer.encode(text)
        if is_cumulative(deltas) or crossed_boundary(one.fmt.tokenizer, tokens, deltas) is not None:
            return one.vote("rechunked", f"deltas of {name} end inside tokens", certain=True, excused=True)
    number, length = len(one.completion.deltas or ()), one.sum.text if one.sum else 0
    return one.vote("batches", f"{number} deltas for {length} tokens", certain=True, excused=True)


# Markers

_CALL_ID = re.compile(r"functions\.[\w.-]+:\d+")


def marker_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on what becomes of unparsed calls' markers.

    By answers to prompts that declare tools in a message of their own, with no `tools` sent.
    """
    for one in observations:
        messages = one.request.get("messages")
        listed = messages if isinstance(messages, list) else []
        roles = [message.get("role") for message in listed if isinstance(message, dict)]
        if one.tools_sent or "tool_declare" not in roles or not one.carries(Fidelity.TEXT):
            continue
        content = one.completion.content or ""
        if one.completion.tool_calls:
            yield one.vote("parsed", "calls came parsed", certain=True)
        elif any(name in content for name in one.fmt.tool_markers()):
            yield one.vote("raw", "markers stand in the text", certain=True)
        elif _CALL_ID.search(content):
            yield one.vote("stripped", "a call without its markers stands in the text", certain=True)


def leak_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on control tokens' names in answers to `tools`."""
    for one in observations:
        if not one.tools_sent or not one.carries(Fidelity.TEXT):
            continue
        think = [one.fmt.tokenizer.name_of(token) for token in (one.fmt.think_open_id, one.fmt.think_close_id)]
        names = (*one.fmt.tool_markers(), *(name for name in think if name and "reserved" not in name))
        text = "".join(texts(one.completion))
        found = next((name for name in names if name in text), None)
        yield one.vote(found is not None, f"{found} stands in the text" if found else "no marker", certain=True)
