"""Lose a killed run's ledger and see it refused.

Guarantees: what is lost is drawn: all files, the write-ahead log alone, all but an older copy, or the whole state
folder for another one. A run that goes on without what it wrote, or asks anything before it is refused, is a violation.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

import httpx2

from harness.fixtures.runs import World
from harness.measures.chaos.checks import ChaosFinding
from harness.measures.chaos.server import QUIET
from harness.measures.chaos.session import Ended
from pipeline.generation.outcome import UNUSABLE

OLDER: Final = "older-state"
LOSSES: Final = ("all files", "log alone", "older copy", "another folder")
_WRITES: Final = "SELECT COUNT(*) + COUNT(answers.identity) FROM requests LEFT JOIN answers USING (identity, attempt)"


def keep_a_copy(world: World) -> None:
    """Copy the state folder as it is now, once."""
    older = world.folder / OLDER
    if world.ledger.exists() and not older.exists():
        shutil.copytree(world.ledger.parent, older)


def lose_ledger(world: World, draw: Random, run: Callable[[], Ended], found: ChaosFinding) -> None:
    """Lose the ledger in a drawn way; judge a session.

    A loss that takes nothing away may go on, as that of a log whose pages were all in the file. Else the ledger is put
    back.
    """
    state, saved, loss = world.ledger.parent, world.folder / "saved-state", draw.choice(LOSSES)
    if not world.ledger.exists() or (loss == "older copy" and not (world.folder / OLDER).exists()):
        return
    state.rename(saved)
    _leave(world, saved, loss)
    httpx2.get(f"{world.url}{QUIET}", timeout=60).raise_for_status()
    before, lost = _asked(world), _writes(saved, world) > _writes(state, world)
    ended = run()
    found.counts[f"ledger lost, {loss}"] += lost
    refused = (ended.how, ended.code) == ("stopped", UNUSABLE)
    if lost and not (refused and before == _asked(world)):
        found.wrong("lost ledger", f"{loss}: {_asked(world) - before} bytes asked, {ended}")
    if lost or refused:
        shutil.rmtree(state)
        saved.rename(state)
    else:
        shutil.rmtree(saved)


def _leave(world: World, saved: Path, loss: str) -> None:
    """Make the state folder as the loss leaves it."""
    state = world.ledger.parent
    if loss == "older copy":
        shutil.copytree(world.folder / OLDER, state)
        return
    state.mkdir()
    if loss == "log alone":
        shutil.copy2(saved / world.ledger.name, state)
    elif loss == "another folder":
        with closing(sqlite3.connect(state / "notes.sqlite")):
            pass


def _writes(state: Path, world: World) -> int:
    """Count reservations and answers, on a copy."""
    copy = world.folder / "counted-state"
    shutil.copytree(state, copy)
    try:
        if not (copy / world.ledger.name).exists():
            return 0
        with closing(sqlite3.connect(copy / world.ledger.name)) as db:
            begun = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone()
            return int(db.execute(_WRITES).fetchone()[0]) if begun else 0
    finally:
        shutil.rmtree(copy)


def _asked(world: World) -> int:
    return world.oracle.stat().st_size if world.oracle.exists() else 0
