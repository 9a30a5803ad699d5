"""A raw HTTP peer on loopback: whatever bytes a function gives for a request are what the client gets.

Guarantees: nothing is added to those bytes and nothing is changed in them; a connection stays open for the next
request. It knows of HTTP/1.1 only where a request ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

HOST = "127.0.0.1"
BACKLOG = 4096
START_SECONDS = 30.0

Reply: TypeAlias = Callable[[bytes, bytes], Iterable[bytes]]
"""From a request's head and body to the writes that answer it."""

LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
AWKWARD = (1, 2, 3, 5, 7, 11, 13, 64, 17, 1, 97, 256, 19)
"""Lengths of pieces that fall within characters, escapes, lines and events."""


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._waiting = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport writes

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (found := _request(self._waiting)) is not None and self._transport is not None:
            head, body, self._waiting = found
            for piece in self._reply(head, body):
                self._transport.write(piece)


def _request(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Head, body and what follows of the first request, once it is whole."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None
    named = LENGTH.search(head)
    length = int(named[1]) if named else 0
    return (head, rest[:length], rest[length:]) if len(rest) >= length else None


def response(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None, awkward: bool = False
) -> list[bytes]:
    """The writes of a response: its length named, or in chunks of awkward lengths."""
    if awkward:
        return list(chunked(pieces(body), status=status, headers=headers))
    return [_head(status, {**(headers or {}), "content-length": str(len(body))}) + body]


def chunked(parts: Iterable[bytes], *, status: int = 200, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """The writes of a response whose chunks are these parts."""
    yield _head(status, {**(headers or {}), "transfer-encoding": "chunked"})
    yield from (b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    yield b"0\r\n\r\n"


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def pieces(body: bytes) -> Iterator[bytes]:
    """The body in awkward lengths."""
    at = 0
    for length in cycle(AWKWARD):
        if at >= len(body):
            return
        yield body[at : at + length]
        at += length


def _phrase(status: int) -> str:
    return http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else "Another"


async def serve(reply: Reply, started: Callable[[int], None], until: asyncio.Event, path: Path | None = None) -> None:
    """Answer on a free port, which `started` is told, or on a Unix socket, until the event is set."""
    loop = asyncio.get_running_loop()
    if path is None:
        server = await loop.create_server(lambda: Answering(reply), HOST, 0, backlog=BACKLOG)
        started(server.sockets[0].getsockname()[1])
    else:
        server = await loop.create_unix_server(lambda: Answering(reply), path)
        started(0)
    await until.wait()
    server.close()


@contextlib.contextmanager
def peering(reply: Reply, path: Path | None = None) -> Iterator[str]:
    """The base URL of a peer in a thread of this process, until the `with` ends.

    On a Unix socket at `path` where one is given; whoever connects must be led there, for an address cannot.
    """
    ready, ports = threading.Event(), list[int]()
    handles: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def started(port: int) -> None:
        ports.append(port)
        ready.set()

    async def run() -> None:
        until = asyncio.Event()
        handles.append((asyncio.get_running_loop(), until))
        await serve(reply, started, until, path)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="peer", daemon=True)
    thread.start()
    if not ready.wait(START_SECONDS):
        raise RuntimeError(f"the peer did not start within {START_SECONDS} s")
    try:
        yield f"http://{HOST}:{ports[0]}/api/v1"
    finally:
        loop, until = handles[0]
        loop.call_soon_threadsafe(until.set)
        thread.join(START_SECONDS)
