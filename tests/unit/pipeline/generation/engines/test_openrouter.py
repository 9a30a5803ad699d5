"""The client against a loopback server that sends exact bytes, and its pools."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from pipeline.generation.engines.openrouter import (
    CONNECTIONS,
    HttpAnswer,
    Key,
    KeyMissingError,
    NoAnswerError,
    OpenRouter,
    Pools,
    encode_body,
    key_from_environment,
    open_client,
)
from pipeline.records import Reason, RefusedError

SECRET = "sk-or-v1-" + "0123456789abcdef" * 2
BODY = b'{"model":"moonshotai/kimi-k2.5","messages":[{"role":"user","content":"\xc3\xa9"}],"stream":false}'
KEPT_ALIVE = (
    b"\n         \n\n         \n"
    b'{"id":"gen-1773945474-wNsrLiYYBQCYV4b1kI2A","object":"chat.completion","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"caf\\u00e9 \xe2\x80\xa8 \\ud83d"}}]}'
)
STREAM = (
    b": OPENROUTER PROCESSING\n\n"
    b'data: {"id":"gen-1-abc","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n'
    b": OPENROUTER PROCESSING\n\n"
    b'data: {"error":{"code":502,"message":"lost"},"choices":[]}\n\n'
    b'data: {"id":"gen-1-abc","choices":[],"usage":{"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)


@dataclass
class Peer:
    """A server that answers each connection with the same bytes and keeps what it was sent."""

    url: str
    requests: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def serving(reply: bytes, *, reset: bool = False) -> Iterator[Peer]:
    listener = socket.create_server(("127.0.0.1", 0))
    peer = Peer(f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1")
    thread = threading.Thread(target=_answer_all, args=(listener, reply, peer), kwargs={"reset": reset}, daemon=True)
    thread.start()
    try:
        yield peer
    finally:
        # A last connection wakes the accept, which closing the socket would not.
        with socket.create_connection(listener.getsockname()) as wake:
            wake.sendall(b"QUIT")
        thread.join(5)
        listener.close()


def _answer_all(listener: socket.socket, reply: bytes, peer: Peer, *, reset: bool) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            request = _read_request(connection)
            if request == b"QUIT":
                return
            peer.requests.append(request)
            connection.sendall(reply)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and data != b"QUIT":
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body if data != b"QUIT" else data


def reply_of(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def chunked(status: str, *parts: bytes, end: bool = True, content_type: str = "text/event-stream") -> bytes:
    headers = ["Connection: close", f"Content-Type: {content_type}", "Transfer-Encoding: chunked"]
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""])
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head.encode() + body + (b"0\r\n\r\n" if end else b"")


def send(url: str, body: bytes = BODY, key: Key | None = None) -> HttpAnswer:
    async def once() -> HttpAnswer:
        async with OpenRouter(url, key or Key(SECRET)) as client:
            return await client.send(body)

    return asyncio.run(once())


def failure(url: str) -> NoAnswerError:
    with pytest.raises(NoAnswerError) as caught:
        send(url)
    return caught.value


def test_keep_alives_and_odd_text_come_back_byte_for_byte() -> None:
    with serving(reply_of("200 OK", KEPT_ALIVE, "Content-Type: application/json")) as peer:
        answer = send(peer.url)

    expected = HttpAnswer(200, KEPT_ALIVE, "application/json", "gen-1773945474-wNsrLiYYBQCYV4b1kI2A", None)
    assert expected == answer


def test_the_request_leaves_as_the_bytes_it_was_given() -> None:
    with serving(reply_of("200 OK", b"{}")) as peer:
        send(peer.url)

    head, _, body = peer.requests[0].partition(b"\r\n\r\n")
    assert body == BODY
    assert head.startswith(b"POST /api/v1/chat/completions HTTP/1.1\r\n")
    lines = {line.lower() for line in head.split(b"\r\n")}
    assert b"content-type: application/json" in lines
    assert b"x-openrouter-cache: false" in lines
    assert f"authorization: bearer {SECRET}".encode() in lines


def test_accounts_of_the_sdks_own_maker_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would read $OPENAI_ORG_ID and $OPENAI_PROJECT_ID and send them to whom they do not concern."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-private")
    with serving(reply_of("200 OK", b"{}")) as peer:
        send(peer.url)

    assert b"private" not in peer.requests[0]


def test_a_stream_keeps_comments_and_what_follows_an_error_in_it() -> None:
    with serving(chunked("200 OK", STREAM[:50], STREAM[50:51], STREAM[51:])) as peer:
        answer = send(peer.url)

    assert HttpAnswer(200, STREAM, "text/event-stream", "gen-1-abc", None) == answer


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_stream_keeps_what_came(reset: bool) -> None:
    with serving(chunked("200 OK", STREAM[:150], end=False), reset=reset) as peer:
        answer = send(peer.url)

    assert not answer.complete
    assert STREAM.startswith(answer.raw)
    assert len(peer.requests) == 1


def test_a_cut_body_is_not_complete() -> None:
    with serving(reply_of("200 OK", KEPT_ALIVE[:100], length=len(KEPT_ALIVE))) as peer:
        answer = send(peer.url)

    assert (KEPT_ALIVE[:100], False) == (answer.raw, answer.complete)


def test_a_compressed_body_comes_back_as_its_content() -> None:
    with serving(reply_of("200 OK", gzip.compress(KEPT_ALIVE), "Content-Encoding: gzip")) as peer:
        assert KEPT_ALIVE == send(peer.url).raw


@pytest.mark.parametrize(
    "status",
    ["400 Bad", "401 Unauthorized", "402 Pay", "408 Timeout", "409 Conflict", "429 Too Many", "500 Oh", "529 Oh"],
)
def test_an_error_status_is_an_answer_and_is_asked_once(status: str) -> None:
    """These include the statuses that the SDK would try again by itself."""
    body = b'{"error":{"message":"Provider returned error","code":429},"user_id":"user_1"}'
    headers = ("Retry-After: 7", "X-RateLimit-Reset: 1759845420000", "x-should-retry: true")
    with serving(reply_of(status, body, *headers)) as peer:
        answer = send(peer.url)

    expected = HttpAnswer(int(status[:3]), body, "", None, "7", "1759845420000")
    assert expected == answer
    assert len(peer.requests) == 1


def test_a_redirect_is_not_followed() -> None:
    with serving(reply_of("307 Temporary Redirect", b"", "Location: /elsewhere")) as peer:
        answer = send(peer.url)

    assert (307, 1) == (answer.status, len(peer.requests))


def test_the_header_names_the_generation_where_the_body_does_not() -> None:
    with serving(reply_of("200 OK", b'{"error":{"code":502}}', "X-Generation-Id: gen-9-head")) as peer:
        assert send(peer.url).generation_id == "gen-9-head"


def test_text_that_spells_a_generation_id_is_not_one() -> None:
    body = json.dumps({"choices": [{"message": {"content": '{"id":"gen-1-fake"}'}}], "id": "gen-2-true"}).encode()
    with serving(reply_of("200 OK", body)) as peer:
        assert send(peer.url).generation_id == "gen-2-true"


def test_a_closed_port_was_sent_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    error = failure(f"http://127.0.0.1:{port}/api/v1")

    assert not error.sent
    assert f"127.0.0.1:{port} could not be reached" in str(error)
    assert "nothing was billed" in str(error)


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_closed_without_an_answer_may_be_billed(reset: bool) -> None:
    with serving(b"", reset=reset) as peer:
        error = failure(peer.url)

    assert error.sent
    assert "may be billed" in str(error)
    assert len(peer.requests) == 1


def test_an_error_cut_in_its_body_may_be_billed() -> None:
    with serving(reply_of("500 Oh", b"{", length=99)) as peer:
        error = failure(peer.url)

    assert error.sent
    assert len(peer.requests) == 1


def test_silence_ends_in_an_error_that_may_be_billed() -> None:
    async def once(url: str) -> None:
        async with OpenRouter(url, Key(SECRET), read_seconds=0.2) as client:
            await client.send(BODY)

    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(NoAnswerError, match="ReadTimeout") as caught:
        asyncio.run(once(f"http://127.0.0.1:{mute.getsockname()[1]}/api/v1"))

    assert caught.value.sent


def test_a_key_that_comes_back_is_blotted_out() -> None:
    body = f'{{"error":{{"message":"Incorrect API key: {SECRET}"}}}}'.encode()
    with serving(reply_of("401 Unauthorized", body)) as peer:
        answer = send(peer.url)

    assert b'{"error":{"message":"Incorrect API key: [key removed]"}}' == answer.raw


def test_no_repr_or_message_shows_the_key() -> None:
    client = OpenRouter("http://127.0.0.1:1/api/v1", Key(SECRET))
    with serving(b"") as peer:
        error = failure(peer.url)

    shown = [repr(client), repr(Key(SECRET)), str(Key(SECRET)), repr(error), str(error), repr(error.__cause__)]
    assert not [text for text in shown if SECRET in text]


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", SECRET)

    assert SECRET == key_from_environment().value


def test_a_missing_key_says_how_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the environment, and from a keyring."""
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(KeyMissingError) as caught:
        key_from_environment()

    assert (
        "$OPENROUTER_API_KEY is not set: run export OPENROUTER_API_KEY=<key of https://openrouter.ai/keys>, or, where"
        " the key lies in a keyring, export OPENROUTER_API_KEY=$(keyring get drafter-gate openrouter)"
    ) == str(caught.value)


@pytest.mark.parametrize("value", ["", "short", f"{SECRET}\n", f" {SECRET}", f"{SECRET}é"])
def test_a_key_that_is_none_is_refused_without_showing_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", value)
    with pytest.raises(KeyMissingError, match="OPENROUTER_API_KEY") as caught:
        key_from_environment()

    assert SECRET not in str(caught.value)


def test_the_emulator_is_given_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", SECRET)
    with serving(reply_of("200 OK", b"{}")) as peer:

        async def once() -> None:
            async with open_client("emulator", peer.url) as client:
                await client.send(BODY)

        asyncio.run(once())

    assert SECRET.encode() not in peer.requests[0]


@pytest.mark.parametrize("url", [None, "https://openrouter.ai/api/v1", "http://10.0.0.1/api/v1"])
def test_an_emulator_elsewhere_is_refused(url: str | None) -> None:
    with pytest.raises(ValueError, match=r"python -m harness emulator"):
        open_client("emulator", url)


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving(reply_of("200 OK", b"{}")) as peer:
        assert send(peer.url).status == 200


def test_bodies_are_compact_and_keep_their_order() -> None:
    assert '{"b":1,"a":"é\\n"}'.encode() == encode_body({"b": 1, "a": "é\n"})


def test_a_lone_surrogate_never_leaves() -> None:
    with pytest.raises(RefusedError) as caught:
        encode_body({"messages": [{"content": "\ud83d"}]})

    assert caught.value.refusal.reason is Reason.LONE_SURROGATE


@dataclass
class Made:
    """A client that counts."""

    number: int
    closed: list[int]

    async def close(self) -> None:
        self.closed.append(self.number)


@dataclass
class Maker:
    made: list[Made] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def __call__(self) -> Made:
        self.made.append(Made(len(self.made), self.closed))
        return self.made[-1]


def test_requests_that_follow_each_other_use_one_pool() -> None:
    maker = Maker()
    pools = Pools(maker)
    for _ in range(5 * CONNECTIONS):
        with pools.use() as client:
            assert 0 == client.number

    assert 1 == len(maker.made)


def test_requests_at_once_use_the_first_pool_with_room() -> None:
    """Each pool takes `CONNECTIONS` requests before the next is made."""
    maker = Maker()
    pools = Pools(maker)
    with ExitStack() as stack:
        used = [stack.enter_context(pools.use()).number for _ in range(2 * CONNECTIONS + 1)]
    with pools.use() as client:
        assert 0 == client.number

    assert [0] * CONNECTIONS + [1] * CONNECTIONS + [2] == used


def test_a_request_that_fails_gives_its_place_back() -> None:
    maker = Maker()
    pools = Pools(maker)
    for _ in range(3 * CONNECTIONS):
        with pytest.raises(ZeroDivisionError), pools.use() as client:
            _ = client.number / 0

    assert 1 == len(maker.made)


def test_all_are_closed() -> None:
    maker = Maker()
    pools = Pools(maker)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS + 1):
            stack.enter_context(pools.use())
    asyncio.run(pools.close())

    assert [0, 1] == maker.closed
