"""What a route does to parsed tool calls: their ids, and the text of their arguments.

Guarantees: an id says by itself whether it is the model's own. Arguments are verbatim only where another way to write
the same JSON would not close the count, or is one that no writer of JSON has; keys in an order that sorting would
change must have been seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from pipeline.fingerprints.counts import Counting
from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.observations import Observation, id_form, named, silent
from pipeline.fingerprints.votes import Learned, Vote, tally
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json, RefusedError, ToolCall


def parsed_traits(seen: Sequence[Observation], counting: Counting) -> dict[TraitName, Learned]:
    """The traits of parsed calls; only where the model's own ids and arguments are text (Kimi's layout)."""
    called = [one for one in seen if one.completion.tool_calls and one.fmt.calls_as_text]
    arguments = tally(_argument_ballots(called, counting))
    if arguments is not None and arguments.value == "verbatim":
        unsorted = any(_shows_order(one) for one in called if one.carries(Fidelity.ARGUMENTS))
        arguments = arguments.lacking(() if unsorted else ("no keys came out of order, so they may have been sorted",))
    found = {TraitName.TOOL_IDS: tally(_id_ballots(called)), TraitName.TOOL_ARGUMENTS: arguments}
    return {name: learned for name, learned in found.items() if learned is not None}


def _id_ballots(called: Sequence[Observation]) -> Iterator[Vote]:
    for one in called:
        if one.carries(Fidelity.CALL_IDS):
            form = id_form(one.completion)
            ids = ", ".join(call.id for call in one.completion.tool_calls)[:60]
            yield named(one, form, ids, certain=True, excused=True)


def _argument_ballots(called: Sequence[Observation], counting: Counting) -> Iterator[Vote]:
    for one in called:
        if not one.carries(Fidelity.TEXT, Fidelity.ARGUMENTS):
            continue
        if _is_odd(one.completion.tool_calls):
            yield named(one, "verbatim", "written as no writer of JSON writes", certain=True)
        elif one.sum is None:
            yield silent(one, one.blank)
        else:
            ways = [replace(counting, end_tools=end) for end in (True, False) if counting.end_tools in (end, None)]
            hidden = {many for way in ways if (many := way.hidden(one.sum)) is not None}
            yield _argument_ballot(one, {one.sum.extra - many for many in hidden})


def _argument_ballot(one: Observation, over: set[int]) -> Vote:
    """`over`: tokens that the arguments as shown do not explain, in each way that the route may count."""
    others = {many - added for many in over for added in _added(one)}
    if 0 in over and 0 in others:
        return silent(one, "written in another way, the arguments would have the same count")
    if 0 in over:
        return named(one, "verbatim", "the count closes with the arguments as they came, and with no other way")
    if 0 in others:
        return named(one, "reserialised", "the count closes with the arguments written in another way")
    told = " or ".join(map(str, sorted(over))) or "unknown"
    return silent(one, f"{told} tokens are not explained by the arguments, in whatever way they are written")


_WRITERS: Sequence[Callable[[Json], str]] = (
    lambda value: json.dumps(value, ensure_ascii=False),
    json.dumps,
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    lambda value: json.dumps(value, separators=(",", ":")),
)


def _written(call: ToolCall) -> list[str]:
    """The arguments as common writers write them; none where they are no JSON."""
    try:
        value = json.loads(call.arguments)
        return [write(value) for write in _WRITERS]
    except (ValueError, RecursionError):
        return []


def _is_odd(calls: Sequence[ToolCall]) -> bool:
    """Whether some arguments are JSON that none of the writers would have written so."""
    return any((ways := _written(call)) and call.arguments not in ways for call in calls)


def _added(one: Observation) -> set[int]:
    """How many tokens more the calls have when written in each other way, all of them in the same.

    A way whose text has no tokens (half a surrogate pair, written out) is none that an answer could come in.
    """
    ways = [(_written(call), call) for call in one.completion.tool_calls]
    if not all(written for written, _ in ways):
        return set()
    found = set()
    for way in range(len(_WRITERS)):
        rewritten = [replace(call, arguments=written[way]) for written, call in ways]
        if rewritten != [call for _, call in ways]:
            pairs = zip(rewritten, one.completion.tool_calls, strict=True)
            with suppress(RefusedError):
                found.add(sum(_length(one, new) - _length(one, old) for new, old in pairs))
    return found


def _length(one: Observation, call: ToolCall) -> int:
    return len(one.fmt.tokenizer.encode(call.arguments))


def _shows_order(one: Observation) -> bool:
    """Whether some arguments have keys in an order that sorting would change."""
    for call in one.completion.tool_calls:
        try:
            value = json.loads(call.arguments)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and list(value) != sorted(value):
            return True
    return False
