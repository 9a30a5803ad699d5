"""How two token sequences differ: where first, how close the choice was, and whether the text is the same all the same.

A near tie at the first difference points at numerics, a wide margin at a change of the model or of the code; the same
text under other ids is the fault that this project exists for. What follows a difference is not compared: greedy text
never comes together again in a meaningful way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from harness.goldens.golden import Golden, GoldenToken
from pipeline.records import Ids

BEFORE = 8
SHOWN = 4


def diff_lines(received: Golden, golden: Golden) -> Iterator[str]:
    """Lines for people; none where prompt and tokens are the same."""
    if received.prompt_ids != golden.prompt_ids:
        at = _first_difference(received.prompt_ids, golden.prompt_ids)
        lengths = f"golden {len(golden.prompt_ids)} ids, received {len(received.prompt_ids)}"
        yield f"prompt ids differ first at {at} ({lengths}); the tokens after it answer another prompt"
    if received.ids != golden.ids:
        yield from _token_lines(received, golden)


def _token_lines(received: Golden, golden: Golden) -> Iterator[str]:
    at = _first_difference(received.ids, golden.ids)
    yield f"first difference at token {at} (golden {len(golden.tokens)} tokens, received {len(received.tokens)})"
    yield f"  after: {''.join(token.piece for token in golden.tokens[max(0, at - BEFORE) : at])!r}"
    recorded = golden.tokens[at] if at < len(golden.tokens) else None
    came = received.tokens[at] if at < len(received.tokens) else None
    if recorded is not None:
        yield from _margin_lines(recorded, came)
    for mark, tokens in (("-", golden.tokens), ("+", received.tokens)):
        for position, token in enumerate(tokens[at : at + SHOWN], at):
            yield f"{mark} {position:>5}  {token.id:>6}  {token.piece!r}"
    if received.text == golden.text:
        yield "the whole text is the same: another split of the same bytes"


def _margin_lines(recorded: GoldenToken, came: GoldenToken | None) -> Iterator[str]:
    if recorded.margin is not None:
        is_runner_up = came is not None and came.id == recorded.runner_up
        which = "the golden's runner-up" if is_runner_up else "not the golden's runner-up"
        yield f"  top-2 margin when recorded: {recorded.margin:.3f} nats; the received token is {which}"
    if came is not None and came.piece == recorded.piece:
        yield f"  same text, other id: {recorded.piece!r} is {recorded.id} in the golden and {came.id} here"


def _first_difference(first: Ids, second: Ids) -> int:
    pairs = enumerate(zip_longest(first, second))
    return next(at for at, (one, other) in pairs if one != other)
