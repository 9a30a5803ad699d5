"""An engine's server for the length of a block.

Guarantees: inside the block the server has answered one token. After it, however the block ends, none of its processes
remains, and none remains if this process is killed. An engine that does not start is an error with the end of its log.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from harness.engines.keeper import GRACE_SECONDS
from harness.engines.settings import HOST, Start
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.output import EngineError
from pipeline.generation.engines.server import EngineFacts, EngineGoneError, EngineServer, ServerRequest
from pipeline.records import Sampling

KEEPER: Final = Path(__file__).parent / "keeper.py"
LONGEST_START: Final = 600.0
LOOK_SECONDS: Final = 0.5
LAST_LINES: Final = 30


class EngineStartError(EngineError):
    """An engine that ended or never answered.

    The message ends with its log.
    """


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A server that answers.

    `keeper` is the process that ends it, `seconds` the time it took to answer.
    """

    url: str
    facts: EngineFacts
    keeper: int
    seconds: float
    log: Path


@contextmanager
def kept(command: list[str], environment: Mapping[str, str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under a keeper; yield the keeper's process.

    The command and everything that it started end with the block.
    """
    reading, writing = os.pipe()
    keeper = [sys.executable, "-I", str(KEEPER), str(reading), *command]
    try:
        process = subprocess.Popen(
            keeper,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=[reading],
            start_new_session=True,  # Ctrl-C at a terminal is this process's to pass on
        )
    finally:
        os.close(reading)
    try:
        yield process
    finally:
        os.close(writing)
        process.wait(GRACE_SECONDS * 4)


@contextmanager
def running(start: Start, *, log: Path | None = None, longest: float = LONGEST_START) -> Iterator[RunningEngine]:
    """Start an engine and yield it answering. Raises EngineStartError."""
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        path = log or Path(folder) / f"{start.name}.log"
        port, begun = start.port or free_port(), time.monotonic()
        url = f"http://{HOST}:{port}"
        with path.open("wb") as file, kept(start.command(port), start.environment(os.environ), file) as process:
            while (facts := asyncio.run(answered(start, url))) is None:
                waited = time.monotonic() - begun
                if process.poll() is not None or waited > longest:
                    how = f"said nothing for {longest:.0f} s" if process.poll() is None else "ended"
                    last = " | ".join(path.read_text("utf-8", "replace").splitlines()[-LAST_LINES:])
                    raise EngineStartError(f"{start.name} {how} before it answered. Its log ends: {last}")
                time.sleep(LOOK_SECONDS)
            yield RunningEngine(url, facts, process.pid, time.monotonic() - begun, path)


async def answered(start: Start, url: str) -> EngineFacts | None:
    """Return the server's facts, or None before it listens.

    It counts as listening once it has given a token.
    """
    try:
        async with EngineServer(DIALECTS[start.name](), url) as server:
            await server.generate(ServerRequest((1,), Sampling(temperature=0.0, max_tokens=1)))
            return server.facts
    except EngineGoneError:
        return None
    except EngineError as error:
        if "status 5" in str(error) or "is no" in str(error):  # it listens before its model is there
            return None
        raise


def free_port() -> int:
    """Return a loopback port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
