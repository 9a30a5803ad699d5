"""A peer that is no bottleneck: one canned answer to every chat completion, from a raw socket in a process of its own.

Guarantees: the answer is a stream that the client can prove, each event a chunk of its own as servers send them, or the
whole in one piece; the read endpoints answer as the emulator's do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from asyncio import Event, run
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase

from harness.chaos_events import events
from harness.dialect import Meta, events_of
from harness.emulator.account import Account
from harness.emulator.offers import MODEL, cost_usd, endpoint_entries
from harness.forks import forked
from harness.peer import HOST, chunked, response, serve
from harness.views import PROFILES, view
from pipeline.formats.parts import Format
from pipeline.records import Prompt

PROVIDER = "siliconflow"
CONTEXT = 1 << 20
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Canned:
    """What the peer says: writes for a chat completion, for `/key`, and for the endpoints. `tokens` in the answer."""

    chat: bytes
    key: bytes
    endpoints: bytes
    tokens: int
    body: bytes

    def reply(self, head: bytes, _: bytes) -> tuple[bytes]:
        if head.startswith(b"POST"):
            return (self.chat,)
        return (self.key if b"/key " in head.partition(b"\r\n")[0] else self.endpoints,)


def canned(fmt: Format, prompt: Prompt, tokens: int, *, whole: bool) -> Canned:
    """An answer of about so many tokens to prompts as long as this one."""
    encode, half = fmt.tokenizer.encode, tokens // 2
    ids = (*encode(_text(half, 1)), fmt.think_close_id, *encode(_text(tokens - half, 2)), fmt.end_id)
    profile, served = PROFILES[PROVIDER], len(fmt.render(prompt))
    shown = view(ids, profile, fmt, thinking=True, tools_sent=False, stream=True)
    cost = float(cost_usd(profile, served, shown.completion_tokens))
    body = "".join(events_of(shown, Meta("gen-1-load", 1, MODEL, profile.name, served, cost))).encode()
    sent = {"content-type": "text/event-stream", "x-generation-id": "gen-1-load"}
    parts = [body] if whole else [part + b"\n\n" for part in events(body)]
    return Canned(
        b"".join(chunked(parts, headers=sent)),
        *(_data(Account().key_entry()), _data(endpoint_entries(MODEL, CONTEXT))),
        *(len(ids), body),
    )


def _text(length: int, seed: int) -> str:
    """Words without a period: the breaker looks for loops."""
    draw = Random(seed)
    words = " ".join("".join(draw.choices(ascii_lowercase, k=draw.randrange(1, 9))) for _ in range(length))
    return f" {words}"[: length - 1] + "."


def _data(value: object) -> bytes:
    return b"".join(response(json.dumps({"data": value}).encode(), headers=JSON))


@contextlib.contextmanager
def load_peer(said: Canned) -> Iterator[str]:
    """The base URL, until the `with` ends."""
    reading, writing = os.pipe()

    def tell(port: int) -> None:
        os.write(writing, f"http://{HOST}:{port}/api/v1\n".encode())
        os.close(writing)

    child = forked(lambda: run(serve(said.reply, tell, Event())))
    os.close(writing)
    with os.fdopen(reading) as file:
        url = file.readline().strip()
    try:
        yield url
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
