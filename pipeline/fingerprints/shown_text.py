"""What answers show of a route by their bytes: white space, deltas, markers in the text.

Guarantees: white space is judged only on copies that carry it, deltas only where they are long enough to tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.fingerprints.counts import Counting
from pipeline.fingerprints.exchanges import Aspect
from pipeline.fingerprints.observations import Observed, named, silent
from pipeline.fingerprints.seam import seam
from pipeline.fingerprints.votes import Ballot, Learned, tally
from pipeline.proof.answer import texts, texts_of
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.repeats import is_cumulative
from pipeline.proof.stream_deltas import crossed_boundary

SHORT = 40
"""Characters below which the deltas of an answer say nothing: one word is one token and one batch."""


def shown_traits(seen: Sequence[Observed], counting: Counting, *, stream: bool) -> dict[TraitName, Learned]:
    """The traits that bytes tell, each with what was learned."""
    found = {
        TraitName.SEAM: seam(seen, counting),
        TraitName.LINE_ENDS: tally(_line_end_ballots(seen)),
        TraitName.DELTAS: tally(_delta_ballots(seen, counting) if stream else _body_ballots(seen)),
        TraitName.MARKERS: tally(_marker_ballots(seen)),
        TraitName.LEAKS: tally(_leak_ballots(seen), worst=(True,)),
    }
    return {name: learned for name, learned in found.items() if learned is not None}


def _line_end_ballots(seen: Sequence[Observed]) -> Iterator[Ballot]:
    """Line ends of both kinds in one answer: whoever changes them makes them alike."""
    for one in seen:
        text = "".join(texts(one.completion))
        if not one.carries(Aspect.TEXT, Aspect.SPACE) or "\r" not in text:
            continue
        if re.search(r"(?<!\r)\n", text):
            yield named(one, "kept", "line ends of both kinds came", certain=True)
        else:
            yield silent(one, "its line ends are all alike, so they may have been changed")


def _body_ballots(seen: Sequence[Observed]) -> Iterator[Ballot]:
    for one in seen:
        yield named(one, "none", "one body", certain=True)


def _delta_ballots(seen: Sequence[Observed], counting: Counting) -> Iterator[Ballot]:
    for one in seen:
        text = "".join(texts(one.completion))
        if not one.carries(Aspect.TEXT, Aspect.DELTAS) or one.completion.tool_calls or len(text) < SHORT:
            continue
        if one.sum is None:
            yield Ballot(one.exchange.id, None, one.size, one.blank)
        elif one.sum.spelled is not None and (one.sum.canonical or _closes_spelled(one, counting)):
            yield named(one, "tokens", f"{one.sum.spelled} deltas are as many tokens", certain=True)
        elif _are_tokens_by_count(one, counting):
            yield named(one, "tokens", "each delta is one token or another, and their number closes the count")
        elif one.sum.section:
            yield silent(one, "its text holds markers")
        else:
            yield _other_deltas(one)


def _closes_spelled(one: Observed, counting: Counting) -> bool:
    hidden = counting.hidden(one.sum) if one.sum else None
    return one.sum is not None and hidden is not None and one.sum.spelled == one.sum.counted - hidden


def _are_tokens_by_count(one: Observed, counting: Counting) -> bool:
    """Whether each delta is a token, though which one is not certain: half a character may stand in the one before."""
    hidden = counting.hidden(one.sum) if one.sum else None
    deltas = one.completion.deltas or ()
    markers = one.fmt.tool_markers()
    whole = one.fmt.tokenizer.id_of_bytes
    each = all(delta.text in markers or whole(delta.text.encode("utf-8", "surrogatepass")) for delta in deltas)
    return each and hidden is not None and one.size - hidden == len(deltas)


def _other_deltas(one: Observed) -> Ballot:
    """Batches of tokens, or neither.

    Both show themselves among tokens: such a row is not proven by its deltas. Deltas that end inside tokens of the text
    encoded again may be of another tokenisation, and the row is refused.
    """
    for name, text in zip(("reasoning", "content"), texts(one.completion), strict=True):
        deltas = texts_of(one.completion, name)
        tokens = one.fmt.tokenizer.encode(text)
        if is_cumulative(deltas) or crossed_boundary(one.fmt.tokenizer, tokens, deltas) is not None:
            return named(one, "rechunked", f"deltas of {name} end inside tokens", certain=True, excused=True)
    many, length = len(one.completion.deltas or ()), one.sum.text if one.sum else 0
    return named(one, "batches", f"{many} deltas for {length} tokens", certain=True, excused=True)


_UNMARKED = re.compile(r"functions\.[\w.-]+:\d+")


def _marker_ballots(seen: Sequence[Observed]) -> Iterator[Ballot]:
    """Answers to prompts that declare tools in a message of their own, with no `tools` sent."""
    for one in seen:
        messages = one.request.get("messages")
        listed = messages if isinstance(messages, list) else []
        roles = [message.get("role") for message in listed if isinstance(message, dict)]
        if one.tools_sent or "tool_declare" not in roles or not one.carries(Aspect.TEXT):
            continue
        content = one.completion.content or ""
        if one.completion.tool_calls:
            yield named(one, "parsed", "calls came parsed", certain=True)
        elif any(name in content for name in one.fmt.tool_markers()):
            yield named(one, "raw", "markers stand in the text", certain=True)
        elif _UNMARKED.search(content):
            yield named(one, "stripped", "a call without its markers stands in the text", certain=True)


def _leak_ballots(seen: Sequence[Observed]) -> Iterator[Ballot]:
    """Answers to requests with `tools`: whether a control token's name stands in their text all the same."""
    for one in seen:
        if not one.tools_sent or not one.carries(Aspect.TEXT):
            continue
        names = (*one.fmt.tool_markers(), *_think_names(one))
        text = "".join(texts(one.completion))
        found = next((name for name in names if name in text), None)
        yield named(one, found is not None, f"{found} stands in the text" if found else "no marker", certain=True)


def _think_names(one: Observed) -> tuple[str, ...]:
    tokens = (one.fmt.think_open_id, one.fmt.think_close_id)
    return tuple(name for token in tokens if (name := one.fmt.tokenizer.name_of(token)) and "reserved" not in name)
