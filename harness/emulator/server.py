"""The emulator on a loopback port, alone or in-process.

Guarantees: the port is bound before anything is loaded or printed, so that a taken port is one clear error, and whoever
has read the address can connect. Requests to an emulator in this process go over a real socket and past any proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
import time
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
REQUEST_SECONDS = 60.0
CONTEXT = 2048


class PortError(Exception):
    """The port cannot be bound."""


def bind(port: int) -> socket.socket:
    """Return a listening socket on loopback.

    Port 0 takes a free one. Raises PortError.
    """
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
    """Return the base URL for clients."""
    return f"http://{HOST}:{listener.getsockname()[1]}/api/v1"


class _Server(uvicorn.Server):
    """Uvicorn, without its second signal.

    It would raise the signal again after a clean shutdown, and so end a clean run with a traceback.
    """

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
    """Serve until SIGINT or SIGTERM.

    `announce` gets the base URL once requests are answered.
    """
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
    """Serve `app` from a thread, and yield its base URL.

    Raises RuntimeError where it does not start.
    """
    listener = bind(0)
    server = _server(app)

    def run() -> None:
        asyncio.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=run, name="emulator", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the emulator did not start within {STARTUP_SECONDS} s")
            time.sleep(0.01)
        yield address(listener)
    finally:
        server.should_exit = True
        thread.join(STARTUP_SECONDS)
        listener.close()


@dataclass(frozen=True, slots=True)
class EmulatorInProcess:
    """An emulator that runs in this process.

    `url` is what a client takes as its base URL.
    """

    url: str
    service: Service
    oracle: Path

    def post(self, body: Mapping[str, object] | bytes, **headers: str) -> httpx2.Response:
        """POST to /chat/completions.

        An object, or bytes as they are.
        """
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with httpx2.Client(trust_env=False, timeout=REQUEST_SECONDS) as client:
            return client.post(f"{self.url}/chat/completions", content=content, headers=headers)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """GET a path below the base URL."""
        with httpx2.Client(trust_env=False, timeout=REQUEST_SECONDS) as client:
            return client.get(f"{self.url}{path}", headers=headers)

    def entries(self) -> list[OracleEntry]:
        """Return the oracle log so far."""
        return list(read_oracle(self.oracle))


@dataclass(frozen=True, slots=True)
class Terms:
    """What may differ from the defaults."""

    account: Account = field(default_factory=Account)
    rate: RateLimit = field(default_factory=RateLimit)
    faults: Faults = field(default_factory=Faults)
    require_key: bool = False


@contextlib.contextmanager
def emulator_in_process(
    fmt: Format, answerer: Answerer, oracle: Path, terms: Terms | None = None
) -> Iterator[EmulatorInProcess]:
    """Run an emulator over `answerer` until the `with` ends.

    Its oracle log is appended to `oracle`.

        with emulator_in_process(fmt, PoolAnswerer(common=[ids]), folder / "oracle.jsonl") as emulator:
            emulator.post({"model": MODEL, "messages": [...]})
    """
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
            yield EmulatorInProcess(url, service, oracle)
