"""Faults on the wire, drawn at random.

They are what providers and networks were seen to do to an answer, and worse. Guarantees: a `Fault` says whether its
answer was made and billed, and whether a row may come of what is shown. What it does is a pure function of the true
answer and a seeded generator. Nothing here knows the client.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final

from harness.fixtures.sse_events import Json, edited, events, is_stream, stream_of, usage_merged

ERROR: Final[Mapping[str, Json]] = {
    "code": 502,
    "message": "Provider returned error",
    "metadata": {"raw": "engine gone", "provider_name": "Chutes"},
}
OK: Final = 200
PRICE: Final = re.compile(rb'"cost": ?[0-9.e-]*')
BILLED_ERRORS: Final = (408, 500, 502, 504, 524)
SLOWEST: Final = 0.03
BOMB_BYTES: Final = 4_000_000
ESCAPES: Final = "\x1b]0;owned\x07\x1b[2J\rviolations: none\u202e"


class End(StrEnum):
    """How the connection ends.

    `CUT` and `RESET` end within the body, `NOTHING` before any status. `NEVER` goes on with comments.
    """

    WHOLE = "whole"
    CUT = "cut"
    RESET = "reset"
    NOTHING = "nothing"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ShownFault:
    """What the client gets. `pause`: seconds between pieces."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    end: End = End.WHOLE
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    `weight`: its share of a thousand requests. `asks`: the answer is made and billed. `passes`: its row may be taken.
    `change` makes what is shown, of the true answer or of an empty one.
    """

    name: str
    weight: int
    asks: bool
    passes: bool
    change: Callable[[ShownFault, Random], ShownFault]


NO_ANSWER: Final = ShownFault(OK, {}, b"")


def _error(status: int, draw: Random, **headers: str) -> ShownFault:
    error: dict[str, Json] = {**ERROR, "code": status}
    if draw.random() < 0.1:  # noqa: PLR2004 - a page from something in between
        return ShownFault(status, {"content-type": "text/html", **headers}, b"<html>try later</html>")
    return ShownFault(status, {"content-type": "application/json", **headers}, json.dumps({"error": error}).encode())


def _turned_away(status: int) -> Callable[[ShownFault, Random], ShownFault]:
    def change(_: ShownFault, draw: Random) -> ShownFault:
        named: list[dict[str, str]] = [
            {},
            {"retry-after": "0.005"},
            {"x-ratelimit-reset": str(int((time.time() + 0.005) * 1000))},
            {"retry-after": "soon"},
            {"retry-after": "30"},
        ]
        (headers,) = draw.choices(named, (8, 4, 4, 1, 1))
        return _error(status, draw, **headers)

    return change


def _lost_after_billing(true: ShownFault, draw: Random) -> ShownFault:
    """Bill the answer, then send an error in its place.

    Half of the errors name the generation.
    """
    named = {key: value for key, value in true.headers.items() if key == "x-generation-id"}
    return _error(draw.choice(BILLED_ERRORS), draw, **(named if draw.random() < 0.5 else {}))  # noqa: PLR2004 - a half


def _error_inside(true: ShownFault, _: Random) -> ShownFault:
    body = json.dumps({"error": ERROR, "user_id": None}).encode()
    return replace(true, body=b"data: " + body + b"\n\n" if is_stream(true.body) else body)


def _error_chunk(true: ShownFault, draw: Random) -> ShownFault:
    """Put an error into a stream, or into a body.

    In a stream it stands amid the chunks, on the usage or behind it, and what follows may come or not.
    """
    if not is_stream(true.body):
        return replace(true, body=edited(true.body, lambda body, _: {**body, "error": ERROR}))
    parts = events(true.body)
    at = draw.choice([draw.randrange(1, len(parts)), len(parts) - 2, len(parts) - 1])
    chunk = b"data: " + json.dumps({"error": ERROR, "choices": []}).encode()
    return replace(true, body=stream_of([*parts[:at], chunk, *(parts[at:] if draw.random() < 0.7 else [])]))  # noqa: PLR2004 - mostly


def _choices(true: ShownFault, change: Callable[[dict[str, Json]], dict[str, Json]]) -> ShownFault:
    def whole(value: dict[str, Json], _: int) -> dict[str, Json]:
        return {**value, "choices": [change(choice) for choice in value.get("choices", [])]}

    return replace(true, body=edited(true.body, whole))


def _nothing_made(_: ShownFault, draw: Random) -> ShownFault:
    """Answer with null `finish_reason` and zero tokens: not billed."""
    head: dict[str, Json] = {"id": f"gen-0-none{draw.getrandbits(40)}", "model": "drafter-gate/tiny-kimi"}
    usage: Json = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9, "cost": 0}
    message: Json = {"role": "assistant", "content": "", "reasoning": None}
    choice: Json = {"index": 0, "finish_reason": None, "native_finish_reason": None, "message": message}
    body: dict[str, Json] = {**head, "provider": "Chutes", "choices": [choice], "usage": usage}
    return ShownFault(OK, {"content-type": "application/json"}, json.dumps(body).encode())


def _hidden_cut(true: ShownFault, _: Random) -> ShownFault:
    def change(choice: dict[str, Json]) -> dict[str, Json]:
        if not choice.get("finish_reason"):
            return choice
        return {**choice, "finish_reason": "tool_calls", "native_finish_reason": "length"}

    return _choices(true, change)


def _emptied(true: ShownFault, _: Random) -> ShownFault:
    gone: dict[str, Json] = {"content": "", "reasoning": None, "reasoning_details": []}

    def change(choice: dict[str, Json]) -> dict[str, Json]:
        return {**choice, **{key: {**choice[key], **gone} for key in ("message", "delta") if key in choice}}

    return _choices(true, change)


def _another(key: str, value: str) -> Callable[[ShownFault, Random], ShownFault]:
    return lambda true, _: replace(true, body=edited(true.body, lambda body, _: {**body, key: value}))


def _junk_logprobs(true: ShownFault, draw: Random) -> ShownFault:
    junk = draw.choice([-1.7881393e-06, {"content": [], "refusal": []}, {"content": None}, 0])
    return _choices(true, lambda choice: {**choice, "logprobs": junk})


def _no_cost(true: ShownFault, draw: Random) -> ShownFault:
    """Leave the price out, or send junk for it.

    The ledger must hold the worst case until it asks again.
    """
    junk: dict[str, Json] = draw.choice([{}, {"cost": 1e300}, {"cost": "free"}, {"cost": -1}])

    def change(body: dict[str, Json], _: int) -> dict[str, Json]:
        usage = body.get("usage")
        if not isinstance(usage, dict):
            return body
        return {**body, "usage": {key: value for key, value in usage.items() if key != "cost"} | junk}

    return replace(true, body=edited(true.body, change))


def _usage_form(true: ShownFault, draw: Random) -> ShownFault:
    """Send usage without choices, or on the last chunk."""
    if not is_stream(true.body):
        return true
    if draw.random() < 0.5:  # noqa: PLR2004 - a half
        return replace(true, body=usage_merged(true.body))
    return replace(
        true, body=edited(true.body, lambda chunk, _: {**chunk, "choices": []} if chunk.get("usage") else chunk)
    )


def _talkative(true: ShownFault, draw: Random) -> ShownFault:
    """Add comments between chunks, or white space before a body."""
    if not is_stream(true.body):
        return replace(true, body=b"\n         \n" * draw.randrange(1, 200) + true.body)
    parts = events(true.body)
    for _ in range(draw.randrange(1, 20)):
        parts.insert(
            draw.randrange(len(parts) + 1), draw.choice([b": OPENROUTER PROCESSING", b":", b"data: : PROCESSING"])
        )
    return replace(true, body=stream_of(parts))


def _cut(end: End) -> Callable[[ShownFault, Random], ShownFault]:
    """End the body early.

    With `End.WHOLE` the connection ends in good order, so only the body shows the damage.
    """

    def change(true: ShownFault, draw: Random) -> ShownFault:
        return replace(true, body=true.body[: draw.randrange(len(true.body))], end=end)

    return change


def _slow(true: ShownFault, draw: Random) -> ShownFault:
    return replace(true, pause=draw.random() * SLOWEST)


def _twice(true: ShownFault, draw: Random) -> ShownFault:
    """Send a run of bytes twice, outside the price.

    A doubled price can still be a price, which no check could see.
    """
    while True:
        start = draw.randrange(len(true.body))
        stop = min(start + draw.randrange(1, 40), len(true.body))
        if not any(start < found.end() and found.start() < stop for found in PRICE.finditer(true.body)):
            break
    return replace(true, body=true.body[:stop] + true.body[start:])


def _chunk_twice(true: ShownFault, draw: Random) -> ShownFault:
    parts = events(true.body)
    at = draw.randrange(len(parts))
    again = at + draw.randrange(1, 4)
    return replace(true, body=stream_of([*parts[:again], *parts[at:]]))


def _chunk_lost(true: ShownFault, draw: Random) -> ShownFault:
    parts = events(true.body)
    del parts[draw.randrange(len(parts))]
    return replace(true, body=stream_of(parts))


def _late_done(true: ShownFault, draw: Random) -> ShownFault:
    """Say twice that it is done, or more behind it."""
    if not is_stream(true.body):
        return true
    more = draw.choice([b"data: [DONE]", b": OPENROUTER PROCESSING"])
    return replace(true, body=true.body + more + b"\n\n")


def _own_key(true: ShownFault, draw: Random) -> ShownFault:
    """Bill upstream, to a key of the account's own.

    Half of the answers do not say that it is one.
    """

    def change(body: dict[str, Json], _: int) -> dict[str, Json]:
        usage = body.get("usage")
        if not isinstance(usage, dict):
            return body
        said = {"is_byok": True} if is_said else {}
        kept = {key: value for key, value in usage.items() if key != "is_byok"}
        return {**body, "usage": kept | said | {"cost": 0, "cost_details": {"upstream_inference_cost": usage["cost"]}}}

    is_said = draw.random() < 0.5  # noqa: PLR2004 - a half
    return replace(true, body=edited(true.body, change))


def _bomb(true: ShownFault, _: Random) -> ShownFault:
    """Send the answer and megabytes of spaces, packed."""
    whole = gzip.compress(true.body + b" " * BOMB_BYTES)
    return replace(true, headers={**true.headers, "content-encoding": "gzip"}, body=whole)


def _escapes(true: ShownFault, draw: Random) -> ShownFault:
    """Put control characters into what is shown to a person."""
    key = draw.choice(["provider", "model", "error"])
    value = {"code": 502, "message": ESCAPES, "metadata": {"raw": ESCAPES}} if key == "error" else ESCAPES
    return replace(true, body=edited(true.body, lambda body, _: {**body, key: value}))


FAULTS: Final = (
    Fault("none", 511, asks=True, passes=True, change=lambda true, _: true),
    Fault("429", 50, asks=False, passes=False, change=_turned_away(429)),
    Fault("503", 25, asks=False, passes=False, change=_turned_away(503)),
    Fault("400", 8, asks=False, passes=False, change=lambda _, draw: _error(400, draw)),
    Fault("402", 1, asks=False, passes=False, change=lambda _, draw: _error(402, draw)),
    Fault("error after billing", 20, asks=True, passes=False, change=_lost_after_billing),
    Fault("200 with an error, billed", 15, asks=True, passes=False, change=_error_inside),
    Fault("error chunk", 25, asks=True, passes=False, change=_error_chunk),
    Fault("nothing made", 10, asks=False, passes=False, change=_nothing_made),
    Fault("length behind tool_calls", 15, asks=True, passes=False, change=_hidden_cut),
    Fault("empty", 15, asks=True, passes=False, change=_emptied),
    Fault("another provider", 8, asks=True, passes=False, change=_another("provider", "Elsewhere")),
    Fault("another model", 8, asks=True, passes=False, change=_another("model", "another/model")),
    Fault("junk logprobs", 20, asks=True, passes=True, change=_junk_logprobs),
    Fault("no cost", 20, asks=True, passes=True, change=_no_cost),
    Fault("usage form", 50, asks=True, passes=True, change=_usage_form),
    Fault("comments", 30, asks=True, passes=True, change=_talkative),
    Fault("ends early", 15, asks=True, passes=True, change=_cut(End.WHOLE)),
    Fault("cut", 15, asks=True, passes=False, change=_cut(End.CUT)),
    Fault("reset", 15, asks=True, passes=False, change=_cut(End.RESET)),
    Fault(
        "reset before the status", 10, asks=True, passes=False, change=lambda _, __: replace(NO_ANSWER, end=End.NOTHING)
    ),
    Fault("slow", 20, asks=True, passes=True, change=_slow),
    Fault("bytes twice", 15, asks=True, passes=True, change=_twice),
    Fault("chunk twice", 15, asks=True, passes=True, change=_chunk_twice),
    Fault("late done", 15, asks=True, passes=True, change=_late_done),
    Fault("own key", 20, asks=True, passes=True, change=_own_key),
    Fault("bomb", 3, asks=True, passes=False, change=_bomb),
    Fault("forever", 3, asks=True, passes=False, change=lambda true, _: replace(true, end=End.NEVER)),
    Fault("escapes", 8, asks=True, passes=False, change=_escapes),
    Fault("chunk lost", 15, asks=True, passes=True, change=_chunk_lost),
)
"""Where `passes` is true of damage, some of it leaves nothing missing (a comment twice, the last line end gone).

There the ids are compared, as everywhere."""


def drawn(draw: Random) -> Fault:
    """Return one fault, drawn by weight."""
    return draw.choices(FAULTS, [fault.weight for fault in FAULTS])[0]
