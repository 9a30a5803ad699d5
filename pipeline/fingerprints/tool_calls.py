"""Learn what a route does to parsed tool calls.

Guarantees: an id shows by itself whether it is the model's own. Arguments are verbatim only where another way to write
the same JSON would not close the count, or where no common writer of JSON writes like that. Keys in an order that
sorting would change must have been seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from pipeline.fingerprints.counts import Counting
from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.observations import Observation, id_form
from pipeline.fingerprints.votes import Learned, Vote, tally
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json, RefusedError, ToolCall


def tool_call_traits(observations: Sequence[Observation], counting: Counting) -> dict[TraitName, Learned]:
    """Learn what is done to ids and arguments of calls.

    Only where the model's own ids and arguments are text (Kimi's layout).
    """
    called = [one for one in observations if one.completion.tool_calls and one.fmt.calls_as_text]
    arguments = tally(argument_votes(called, counting))
    if arguments is not None and arguments.value == "verbatim":
        unsorted = any(_has_unsorted_keys(one) for one in called if one.carries(Fidelity.ARGUMENTS))
        arguments = arguments.lacking(() if unsorted else ("no keys came out of order, so they may have been sorted",))
    found = {TraitName.TOOL_IDS: tally(call_id_votes(called)), TraitName.TOOL_ARGUMENTS: arguments}
    return {name: learned for name, learned in found.items() if learned is not None}


def call_id_votes(called: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on whose ids the calls have."""
    for one in called:
        if one.carries(Fidelity.CALL_IDS):
            ids = ", ".join(call.id for call in one.completion.tool_calls)[:60]
            yield one.vote(id_form(one.completion), ids, certain=True, excused=True)


def argument_votes(called: Sequence[Observation], counting: Counting) -> Iterator[Vote]:
    """Vote on whether arguments were written anew."""
    for one in called:
        if not one.carries(Fidelity.TEXT, Fidelity.ARGUMENTS):
            continue
        written = [(call, _written(call)) for call in one.completion.tool_calls]
        if any(ways and call.arguments not in ways for call, ways in written):
            yield one.vote("verbatim", "written as no writer of JSON writes", certain=True)
        elif one.sum is None:
            yield one.abstain(one.why_no_sum)
        else:
            ways = [replace(counting, end_tools=end) for end in (True, False) if counting.end_tools in (end, None)]
            hidden = [tokens for way in ways if (tokens := way.hidden(one.sum)) is not None]
            yield _vote_by_count(one, {one.sum.extra - tokens for tokens in hidden})


def _vote_by_count(one: Observation, unexplained: set[int]) -> Vote:
    """Vote by which way to write arguments closes the count.

    `unexplained`: tokens that the arguments as shown do not explain, in each way that the route may count.
    """
    others = {tokens - added for tokens in unexplained for added in _added(one)}
    if 0 in unexplained and 0 in others:
        return one.abstain("written in another way, the arguments would have the same count")
    if 0 in unexplained:
        return one.vote("verbatim", "the count closes with the arguments as they came, and with no other way")
    if 0 in others:
        return one.vote("reserialised", "the count closes with the arguments written in another way")
    tokens = " or ".join(map(str, sorted(unexplained))) or "unknown"
    return one.abstain(f"{tokens} tokens are not explained by the arguments, in whatever way they are written")


_WRITERS: Sequence[Callable[[Json], str]] = (
    lambda value: json.dumps(value, ensure_ascii=False),
    json.dumps,
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    lambda value: json.dumps(value, separators=(",", ":")),
)


def _written(call: ToolCall) -> list[str]:
    """Return the arguments as common writers of JSON write them.

    Empty where they are no JSON.
    """
    try:
        value = json.loads(call.arguments)
        return [write(value) for write in _WRITERS]
    except (ValueError, RecursionError):
        return []


def _added(one: Observation) -> set[int]:
    """Return how many more tokens each other way takes.

    All calls are written in the same way. A way whose text has no tokens (half a surrogate pair, written out) cannot
    be the model's, and is left out.
    """
    calls = one.completion.tool_calls
    written = [_written(call) for call in calls]
    if not all(written):
        return set()
    encode = one.fmt.tokenizer.encode
    found = set()
    for texts in zip(*written, strict=True):
        if any(text != call.arguments for text, call in zip(texts, calls, strict=True)):
            with suppress(RefusedError):
                pairs = zip(texts, calls, strict=True)
                found.add(sum(len(encode(text)) - len(encode(call.arguments)) for text, call in pairs))
    return found


def _has_unsorted_keys(one: Observation) -> bool:
    """Whether some arguments have keys that sorting would reorder."""
    for call in one.completion.tool_calls:
        try:
            value = json.loads(call.arguments)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and list(value) != sorted(value):
            return True
    return False
