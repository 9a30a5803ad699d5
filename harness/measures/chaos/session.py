"""One session of a client in a forked process.

It may be killed. Guarantees: a fork shares nothing with its parent that a run writes. How it ended is reported, and a
traceback is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from unittest.mock import patch

from harness.fixtures.forks import forked, told_by
from harness.fixtures.runs import World
from pipeline.generation.backends import hosted
from pipeline.generation.engines.openrouter import OpenRouter, open_client
from pipeline.generation.ledger import Ledger
from pipeline.generation.outcome import StopError
from pipeline.generation.plan import Plan
from pipeline.generation.reconcile import reconcile
from pipeline.records import Json

LOOK_SECONDS = 0.002
LONGEST_SECONDS = 120.0
Due: TypeAlias = Callable[[], bool]
How = Literal["killed", "ended", "stopped", "crashed"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended.

    `is_over`: every row is there, or its fate is unknown.
    """

    how: How
    code: int = 0
    message: str = ""
    is_over: bool = False


def when_asked(world: World, size: int) -> Due:
    """Due once the emulator's log has grown by `size` bytes."""
    grown = _size(world.oracle) + size
    return lambda: _size(world.oracle) >= grown


def when_writing(world: World) -> Due:
    """Due once the session writes rows.

    A shard, the file that becomes one, or the quarantine.
    """
    before = _rows_on_disk(world.out)
    return lambda: _rows_on_disk(world.out) != before


def _rows_on_disk(folder: Path) -> list[tuple[str, int]]:
    with contextlib.suppress(FileNotFoundError):  # a file was renamed while it was looked at
        paths = [path for pattern in ("*shard-*", ".*shard-*", "quarantine.jsonl") for path in folder.glob(pattern)]
        return sorted((path.name, path.stat().st_size) for path in paths)
    return [("renamed", 0)]


def session(world: World, plan: Plan, due: Due | None) -> Ended:
    """Run one session; kill it once that is due."""
    report = world.folder / "said.json"
    report.unlink(missing_ok=True)
    child = forked(lambda: report.write_text(json.dumps(_outcome(world, plan))), silent=True)
    deadline = time.monotonic() + LONGEST_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] != child:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended("crashed", message=f"no end within {LONGEST_SECONDS} s")
        if due is not None and due():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(LOOK_SECONDS)
    try:
        return Ended(**json.loads(report.read_text()))
    except (OSError, ValueError):
        return Ended("killed")


def _outcome(world: World, plan: Plan) -> dict[str, Json]:
    """Run the session in the child; return `Ended`'s fields."""
    try:
        with patch.object(hosted, "open_client", _impatient_client):
            summary = world.run(plan)
    except StopError as error:
        return {"how": "stopped", "code": error.code, "message": str(error), "is_over": False}
    except Exception:  # noqa: BLE001 - it is what is looked for
        return {"how": "crashed", "code": 1, "message": traceback.format_exc(), "is_over": False}
    is_over = summary.rows["left"] == summary.rows["unknown"]
    message = summary.message or ""
    how = "crashed" if message.startswith("an error of this program") else "ended"
    return {"how": how, "code": summary.code, "message": message, "is_over": is_over}


def _impatient_client(_: str, base_url: str | None) -> OpenRouter:
    """Return a client whose limits a measure can wait for."""
    return OpenRouter(str(base_url), whole_seconds=2.0, most_bytes=1_000_000)


def reconciled(ledger: Path, url: str) -> None:
    """Ask the emulator for the cost of unsettled requests.

    In a process of its own. Raises ChildError.
    """

    async def ask() -> Json:
        async with open_client("emulator", url) as client:
            with closing(Ledger(ledger)) as opened:
                return {str(what): n for what, n in (await reconcile(client, opened, "emulator")).items()}

    told_by(lambda: asyncio.run(ask()))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
