"""Runs the emulator on a loopback port: in the foreground until a signal, or in a thread for the length of a `with`.

Guarantees: the port is bound before anything is loaded or printed, so that a taken port is one clear error, and whoever
has read the address can connect.

An emulator for the length of a `with`, in this process: its address, its state, its oracle log.

Guarantees: requests go over a real loopback socket and past any proxy. For tests and for recording.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import uvicorn
from starlette.applications import Starlette

from harness.emulator.account import Account, RateLimit
from harness.emulator.answers import Answerer
from harness.emulator.app import create_app
from harness.emulator.oracle_log import OracleEntry, OracleLog, read_oracle
from harness.emulator.service import Faults, Service
from pipeline.formats.format import Format

HOST = "127.0.0.1"
BACKLOG = 4096
GRACE_SECONDS = 5
STARTUP_SECONDS = 30.0


class PortError(Exception):
    """The port cannot be had."""


def bind(port: int) -> socket.socket:
    """A listening socket on loopback; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        message = f"port {port} on {HOST} cannot be had ({why})"
        raise PortError(f"{message}. Take another, or a free one with: --port 0") from None
    return listener


def address(listener: socket.socket) -> str:
    """The base URL that clients are given."""
    return f"http://{HOST}:{listener.getsockname()[1]}/api/v1"


class _Server(uvicorn.Server):
    """Uvicorn, which would raise the signal again after a clean shutdown and so end a clean run with a traceback."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Starlette) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return _Server(config)


def serve(app: Starlette, listener: socket.socket, announce: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM; `announce` gets the base URL once requests are answered."""
    server = _server(app)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, setattr, server, "should_exit", True)  # noqa: FBT003
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():  # noqa: ASYNC110  # uvicorn has a flag and no event
            await asyncio.sleep(0.01)
        if server.started:
            announce(address(listener))
        await serving

    asyncio.run(run())


@contextlib.contextmanager
def running(app: Starlette) -> Iterator[str]:
    """The base URL of `app`, served from a thread of this process until the `with` ends."""
    listener = bind(0)
    server = _server(app)
    thread = threading.Thread(target=_serve_in_thread, args=(server, listener), name="emulator", daemon=True)
    thread.start()
    try:
        _await_start(server, thread)
        yield address(listener)
    finally:
        server.should_exit = True
        thread.join(STARTUP_SECONDS)
        listener.close()


def _serve_in_thread(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.run(server.serve(sockets=[listener]))


def _await_start(server: uvicorn.Server, thread: threading.Thread) -> None:
    waited = threading.Event()
    for _ in range(int(STARTUP_SECONDS / 0.01)):
        if server.started:
            return
        if not thread.is_alive():
            break
        waited.wait(0.01)
    raise RuntimeError(f"the emulator did not start within {STARTUP_SECONDS} s")


def say(line: str) -> None:
    """One line to stdout, at once, for whoever waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


CONTEXT = 2048
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A running emulator; `url` is what a client takes as its base URL."""

    url: str
    service: Service
    oracle: Path

    def post(self, body: Mapping[str, object] | bytes, **headers: str) -> httpx2.Response:
        """POST to /chat/completions of an object, or of bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
            return client.post(f"{self.url}/chat/completions", content=content, headers=headers)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """GET of a path below the base URL."""
        with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
            return client.get(f"{self.url}{path}", headers=headers)

    def entries(self) -> list[OracleEntry]:
        """The oracle log so far."""
        return list(read_oracle(self.oracle))


@dataclass(frozen=True, slots=True)
class Terms:
    """What may be other than usual: the account, the rate limit, faults, whether a key is asked for."""

    account: Account = field(default_factory=Account)
    rate: RateLimit = field(default_factory=RateLimit)
    faults: Faults = field(default_factory=Faults)
    require_key: bool = False


@contextlib.contextmanager
def emulating(fmt: Format, answerer: Answerer, oracle: Path, terms: Terms | None = None) -> Iterator[Trial]:
    """A Trial over `answerer`, its oracle log appended to `oracle`."""
    terms = terms or Terms()
    with OracleLog(oracle) as log:
        service = Service(
            fmt=fmt,
            answerer=answerer,
            oracle=log,
            context=CONTEXT,
            account=terms.account,
            rate=terms.rate,
            faults=terms.faults,
            require_key=terms.require_key,
        )
        with running(create_app(service)) as url:
            yield Trial(url, service, oracle)
