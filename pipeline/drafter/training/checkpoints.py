"""Checkpoints: all that a training needs to continue.

A continued training is as if it had never stopped. Guarantees: a checkpoint is whole or absent, whatever kills the
program. What is read is what was written: each file's hash is in `state.json`, which has a hash of its own. Weights and
moments are float32 as trained, however the work was shared. A changed checkpoint is refused and named, never skipped
silently.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pipeline.base.files import aside, sync_folder, write_whole
from pipeline.base.json_lines import canonical
from pipeline.records import Json

CHECKPOINTS, STATE = "checkpoints", "state.json"
NAME = re.compile(r"step-(\d{8,})")
VERSION = 2
PARTS = ("drafter", "optimizer", "random")
SEAL = "state_sha256"


class CheckpointError(Exception):
    """A changed checkpoint, or something that is none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A training after `step` steps, all tensors on the CPU.

    `drafter` are its parameters and the two maps of its vocabulary, by name; `optimizer` the moments, as
    `NAME.exp_avg`, `NAME.exp_avg_sq` and `NAME.step`; `random` the states of the generators, as `cpu.RANK` and
    `cuda.RANK`. `description` describes the drafter to readers, in plain JSON.
    """

    step: int
    drafter: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    random: Mapping[str, torch.Tensor]
    description: Mapping[str, Json]


def save(run: Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint into the run's folder.

    It is a folder of its own; an existing one stays. Raises OSError, and CheckpointError where a weight is not finite,
    since such a checkpoint would pass for good.
    """
    if broken := [name for name, tensor in snapshot.drafter.items() if not bool(tensor.isfinite().all())]:
        raise CheckpointError(f"{broken[0]} is not finite after step {snapshot.step}; the checkpoint before it stands")
    home = run / CHECKPOINTS
    place = home / f"step-{snapshot.step:08d}"
    if place.exists():
        return place
    part = aside(place)
    shutil.rmtree(part, ignore_errors=True)  # what a kill left
    part.mkdir(parents=True)
    try:
        _fill(part, snapshot)
        part.rename(place)
    except SafetensorError as error:  # its own word for a full disk
        shutil.rmtree(part, ignore_errors=True)
        what = f"the checkpoint after step {snapshot.step} cannot be written ({error})"
        raise CheckpointError(f"{what}; the one before it stands. Make room, and run the same command again") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(home)
    return place


def _fill(folder: Path, snapshot: Snapshot) -> None:
    """Write and sync the parts, then `state.json` with their hashes."""
    files: dict[str, Json] = {}
    for name in PARTS:
        path = folder / f"{name}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in getattr(snapshot, name).items()}, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.name] = _sha256(path)
    state: dict[str, Json] = {"checkpoint": VERSION, "step": snapshot.step, "files": files, **snapshot.description}
    text = json.dumps({**state, SEAL: _seal(state)}, indent=2) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode("ascii"))

    write_whole(folder / STATE, write)


def load(place: Path) -> Snapshot:
    """Read a checkpoint. Raises CheckpointError, OSError."""
    state = read_state(place)
    files = state["files"]
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name in PARTS:
        path = place / f"{name}.safetensors"
        wanted = files.get(path.name) if isinstance(files, dict) else None
        if not path.is_file() or _sha256(path) != wanted:
            found = "was changed" if path.is_file() else "is gone"
            raise CheckpointError(f"{path} {found} since it was written. {_remedy(place)}")
        try:
            parts[name] = dict(load_file(path))
        except SafetensorError as error:
            raise CheckpointError(f"{path} cannot be read ({error}). {_remedy(place)}") from error
    kept = {key: value for key, value in state.items() if key not in {"checkpoint", "step", "files", SEAL}}
    return Snapshot(int(str(state["step"])), **parts, description=kept)


def read_state(place: Path) -> dict[str, Json]:
    """Return a checkpoint's `state.json`. Raises CheckpointError."""
    path = place / STATE
    if not path.is_file():
        raise CheckpointError(f"{place} holds no {STATE}: give the folder of a checkpoint, {CHECKPOINTS}/step-…")
    try:
        state: dict[str, Json] = json.loads(path.read_bytes())
        if state["checkpoint"] != VERSION:
            raise CheckpointError(f"{path} is of version {state['checkpoint']}, this program knows {VERSION}")
        if state.pop(SEAL) != _seal(state):
            raise CheckpointError(f"{path} was changed since it was written. {_remedy(place)}")
        _ = (int(str(state["step"])), dict(state["files"]))  # type: ignore[arg-type]  # whatever it is
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no checkpoint of this program ({error}). {_remedy(place)}") from error
    return state


def _seal(state: Mapping[str, Json]) -> str:
    """Return the hash of everything else in `state.json`."""
    return hashlib.sha256(canonical(state)).hexdigest()


def all_of(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    home = run / CHECKPOINTS
    found = [path for path in home.iterdir() if NAME.fullmatch(path.name)] if home.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def newest(run: Path) -> Path | None:
    """Return the checkpoint to continue from; None without any."""
    return next(reversed(all_of(run)), None)


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest `keep`, and remains of kills.

    Raises OSError.
    """
    for path in all_of(run)[:-keep]:
        gone = aside(path)
        path.rename(gone)  # a kill in the middle leaves nothing that looks like a checkpoint
        shutil.rmtree(gone)
    for path in (run / CHECKPOINTS).glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _remedy(place: Path) -> str:
    return f"Put it back, or remove {place} and the run goes on from the checkpoint before it"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
