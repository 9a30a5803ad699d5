"""Answers without end or measure, from a real socket: kept up to their limit, or no answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
import zlib
from collections.abc import Iterator

import pytest

from pipeline.generation.engines.openrouter import HttpAnswer, NoAnswerError, OpenRouter

CHUNK = b'data: {"id":"gen-1-a","choices":[]}\n\n'
MOST = 1024 * 1024
JUNK = b"0" * (64 * MOST)


@contextlib.contextmanager
def peer(reply: bytes, *, alive: bytes = b"") -> Iterator[str]:
    """Answer with `reply`; then send `alive` for as long as the client listens."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)
                while alive:
                    connection.sendall(alive)
                    time.sleep(0.01)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1"
    finally:
        listener.close()
        thread.join(5)


def head(status: int, length: int | None, encoding: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status} X", "content-type: text/event-stream", "connection: close"]
    lines += [f"content-length: {length}"] if length is not None else []
    lines += [f"content-encoding: {encoding}"] if encoding else []
    return "\r\n".join([*lines, "", ""]).encode()


def sent(url: str, *, get: bool = False) -> HttpAnswer:
    async def work() -> HttpAnswer:
        async with OpenRouter(url, whole_seconds=0.5, most_bytes=MOST) as client:
            return await client.get("key") if get else await client.send(b"{}")

    return asyncio.run(work())


PACKED = {"gzip": gzip.compress(CHUNK + JUNK), "deflate": zlib.compress(CHUNK + JUNK), "": CHUNK + b"data: " + JUNK}


@pytest.mark.parametrize("encoding", PACKED)
def test_an_answer_that_inflates_is_kept_up_to_its_limit(encoding: str) -> None:
    raw = PACKED[encoding]
    with peer(head(200, len(raw), encoding) + raw) as url:
        answer = sent(url)

    assert (MOST, CHUNK, False) == (len(answer.raw), answer.raw[: len(CHUNK)], answer.complete)
    assert f"limit of {MOST} bytes" in answer.cut


@pytest.mark.parametrize("get", [False, True])
@pytest.mark.parametrize("encoding", PACKED)
def test_an_error_or_page_that_inflates_is_no_answer(encoding: str, *, get: bool) -> None:
    raw = PACKED[encoding]
    with peer(head(200 if get else 429, len(raw), encoding) + raw) as url, pytest.raises(NoAnswerError) as caught:
        sent(url, get=get)

    assert caught.value.sent
    assert f"limit of {MOST} bytes" in str(caught.value)


def test_a_page_in_a_broken_encoding_is_no_answer() -> None:
    with peer(head(200, 5, "gzip") + b"plain") as url, pytest.raises(NoAnswerError, match="DecodingError"):
        sent(url, get=True)


def test_an_answer_of_keep_alives_alone_ends() -> None:
    with peer(head(200, None) + CHUNK, alive=b": OPENROUTER PROCESSING\n\n") as url:
        answer = sent(url)

    assert (CHUNK, False) == (answer.raw[: len(CHUNK)], answer.complete)
    assert answer.cut == "the answer had not ended after 0.5 s"


def test_a_head_that_never_ends_is_no_answer() -> None:
    with peer(b"HTTP/1.1 200 OK\r\n", alive=b"x-a: b\r\n") as url, pytest.raises(NoAnswerError) as caught:
        sent(url)

    assert caught.value.sent
