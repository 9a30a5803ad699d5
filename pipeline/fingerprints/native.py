"""Whether counts are of the sampled ids, and where thinking is shown that was never closed.

Guarantees: an equality that the text encoded again would give as well proves nothing: `count_native` is proven only
where `TELLING` answers have another count than their text, be it by control tokens that no text shows, by another
tokenisation in their deltas, or by a cut at the limit. A recount that knows of the hidden tokens, too, is told apart by
the last two alone: one answer whose count is its text's and theirs, where others were sampled, speaks against
it by its bytes, and undoes all the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pipeline.fingerprints.counts import TELLING, Counting
from pipeline.fingerprints.exchanges import Aspect
from pipeline.fingerprints.observations import Observed, hides_reasoning, named
from pipeline.fingerprints.votes import Ballot, Learned, tally
from pipeline.formats.format import Format, Opener, opening
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import RefusedError


def native_traits(seen: Sequence[Observed], counting: Counting, *, end_proven: bool) -> dict[TraitName, Learned]:
    """Both traits; `count_native` also where no answer says anything: its value is null then, and opens nothing."""
    unclosed = tally(_unclosed_ballots(seen))
    found = {TraitName.COUNT_NATIVE: _native(seen, counting, end_proven=end_proven)}
    return found if unclosed is None else {**found, TraitName.UNCLOSED: unclosed}


def _native(seen: Sequence[Observed], counting: Counting, *, end_proven: bool) -> Learned:
    pairs = [pair for one in seen for pair in _native_ballots(one, counting)]
    lacks = []
    if (told := sum(tells and ballot.value is True for ballot, tells in pairs)) < TELLING:
        lacks.append(f"{told} of {TELLING} answers would have another count if their text were encoded again")
    if counting.end is True and not end_proven:
        lacks.append("end_token_counted is not proven")
    learned = tally((ballot for ballot, _ in pairs), worst=(False,))
    return (learned or Learned(Trait(None, 0, proven=False))).lacking(lacks)


def _native_ballots(one: Observed, counting: Counting) -> Iterator[tuple[Ballot, bool]]:
    """At most one ballot, and whether a recount of the text would have given another count."""
    total = one.sum
    hidden = None if total is None else counting.hidden(total)
    if total is None or hidden is None:
        return
    again = total.text + hidden
    if total.spelled is not None and total.spelled != total.text:
        told = {total.spelled + hidden: True, again: False}.get(total.counted)
        why = f"its deltas spell {total.spelled} tokens, its text is {total.text}, {total.counted} are counted"
        yield Ballot(one.exchange.id, told, one.size, why, certain=told is not None), True
    elif not total.ended and one.max_tokens is not None:
        told = True if total.counted == one.max_tokens else False if total.counted == again else None
        why = f"cut at {one.max_tokens}, {total.counted} are counted, its text encoded again makes {again}"
        certain = told is False
        yield Ballot(one.exchange.id, told, one.size, why, certain=certain), total.counted != again
    elif total.ended and total.counted == again and hidden and not _adds_begin(one.fmt):
        yield named(one, value=True, why=f"{hidden} beside the text, which no text shows"), True


def _unclosed_ballots(seen: Sequence[Observed]) -> Iterator[Ballot]:
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


def _is_all(one: Observed, content: str) -> bool:
    """Whether the count leaves no room for a hidden reasoning."""
    opener = one.model.opener(one.fmt, thinking=True)
    begun = len(opening(one.fmt)) if opener is Opener.MODEL else 0
    try:
        return one.carries(Aspect.TEXT) and one.size - len(one.fmt.tokenizer.encode(content)) in (0, begun)
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
