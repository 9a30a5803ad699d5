"""The emulator behind a bad wire, in its own process.

Every chat completion meets a drawn fault. Guarantees: the emulator's answer is made and billed before anything is
damaged. What was done to it is written before its first byte is sent, one JSON object a line: `{"sample", "fault",
"generation", "sha256"}`, the hash being that of a body that is sent whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import socket
import struct
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from harness.emulator.account import Account
from harness.emulator.answers import PoolAnswerer
from harness.emulator.oracle_log import OracleLog
from harness.emulator.service import Service
from harness.fixtures.forks import forked
from harness.measures.chaos.faults import FAULTS, NO_ANSWER, End, Fault, ShownFault, drawn
from pipeline.formats.format import Format
from pipeline.records import Ids

if TYPE_CHECKING:
    from starlette.applications import Starlette

App: TypeAlias = Any
Scope: TypeAlias = MutableMapping[str, Any]
CHAT = "/chat/completions"
QUIET = "/quiet"
PIECES = 4
NONE: Fault = FAULTS[0]


@dataclass(slots=True)
class BadWire:
    """An ASGI application around the emulator's."""

    app: App
    draw: Random
    log: IO[str]
    asked: int = 0

    async def __call__(self, scope: Scope, receive: App, send: App) -> None:
        if scope["type"] == "http" and scope["path"].endswith(QUIET):
            await self._be_quiet(send)
            return
        if scope["type"] != "http" or not scope["path"].endswith(CHAT):
            await self.app(scope, receive, send)
            return
        body = await _body(receive)
        fault = drawn(self.draw)
        self.asked += 1
        true = await _Kept(body).answer(self.app, scope) if fault.asks else NO_ANSWER
        self.asked -= 1
        if fault.asks and true.status != NO_ANSWER.status:
            fault = NONE
        shown = fault.change(true, self.draw)
        whole = hashlib.sha256(shown.body).hexdigest() if shown.end is End.WHOLE else None
        generation = true.headers.get("x-generation-id")
        line = {"sample": json.loads(body).get("user"), "fault": fault.name, "generation": generation, "sha256": whole}
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        await _show(shown, receive, send)

    async def _be_quiet(self, send: App) -> None:
        """Answer once all that was sent before has been billed.

        A killed client's last requests wait in sockets; two rounds of the loop read them.
        """
        await asyncio.sleep(0.1)
        while self.asked:  # noqa: ASYNC110 - a count, asked for a few times a run
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def _body(receive: App) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


@dataclass(slots=True)
class _Kept:
    """What the inner application sends, kept instead of sent."""

    body: bytes
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    read: bool = False

    async def answer(self, app: App, scope: Scope) -> ShownFault:
        await app(scope, self._receive, self._send)
        self.headers.pop("content-length", None)
        return ShownFault(self.status, self.headers, b"".join(self.parts))

    async def _receive(self) -> dict[str, object]:
        if self.read:
            await asyncio.Event().wait()  # the client never goes away
        self.read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {key.decode().lower(): value.decode() for key, value in message["headers"]}
        else:
            self.parts.append(message.get("body", b""))


async def _show(shown: ShownFault, receive: App, send: App) -> None:
    transport = receive.__self__.transport  # uvicorn's request cycle: ASGI has no way to break a connection
    if shown.end is End.NOTHING:
        _reset(transport)
        return
    headers = [(key.encode(), value.encode()) for key, value in shown.headers.items()]
    await send({"type": "http.response.start", "status": shown.status, "headers": headers})
    size = -(-len(shown.body) // PIECES) or 1
    for start in range(0, len(shown.body), size):
        await send({"type": "http.response.body", "body": shown.body[start : start + size], "more_body": True})
        await asyncio.sleep(shown.pause)
    if shown.end is End.NEVER:
        await _go_on(send, transport)
    elif shown.end is End.CUT:
        transport.close()
    elif shown.end is End.RESET:
        _reset(transport)
    else:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _go_on(send: App, transport: asyncio.WriteTransport) -> None:
    """Send comments until the client has gone."""
    while not transport.is_closing():
        await send({"type": "http.response.body", "body": b": OPENROUTER PROCESSING\n\n", "more_body": True})
        await asyncio.sleep(0.05)


def _reset(transport: asyncio.WriteTransport) -> None:
    """Close so that the client gets a reset."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def answers(fmt: Format, draw: Random, count: int = 64) -> list[Ids]:
    """Return a pool of awkward texts.

    They hold characters of several bytes, line feeds, and repeated words.
    """
    encode = fmt.tokenizer.encode
    words = ["more ", "more ", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\n", "\N{ROCKET}", "aa", "  ", "x=1;", '"\\"']

    def text() -> str:
        return " " + "".join(draw.choices(words, k=draw.randrange(2, 14))) + "."

    return [(*encode(text()), fmt.think_close_id, *encode(text()), fmt.end_id) for _ in range(count)]


@contextlib.contextmanager
def bad_wire(fmt: Format, oracle: Path, log: Path, seed: int) -> Iterator[str]:
    """Serve in a forked process within the block.

    Yields the base URL.
    """
    reading, writing = os.pipe()
    child = forked(lambda: _serve(fmt, oracle, log, seed, writing))
    os.close(writing)
    with os.fdopen(reading) as said:
        url = said.readline().strip()
    try:
        yield url
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def _serve(fmt: Format, oracle: Path, log: Path, seed: int, writing: int) -> None:
    from harness.emulator.app import create_app
    from harness.emulator.server import CONTEXT, address, bind, serve

    logging.disable()  # uvicorn tells of each connection that was broken on purpose
    draw = Random(seed)
    with OracleLog(oracle) as truth, log.open("a", encoding="utf-8") as file:
        pool = PoolAnswerer(common=answers(fmt, draw))
        service = Service(fmt, pool, truth, CONTEXT, account=Account(Decimal(1000), delay=0.0), seeds=Random(seed))
        listener = bind(0)

        def started(_: object) -> None:
            os.write(writing, f"{address(listener)}\n".encode())
            os.close(writing)

        serve(cast("Starlette", BadWire(create_app(service), draw, file)), listener, started)
