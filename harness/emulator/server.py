"""Runs the emulator on a loopback port: in the foreground until a signal, or in a thread for the length of a `with`.

Guarantees: the port is bound before anything is loaded or printed, so that a taken port is one clear error, and whoever
has read the address can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

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
