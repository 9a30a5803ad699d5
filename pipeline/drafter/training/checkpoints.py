"""Checkpoints: all that a training needs to go on as if it had never stopped.

Guarantees: a checkpoint is whole or not there, whatever kills the program; what is read is what was written, since each
file's hash stands in `state.json`, which has a hash of its own. Weights and moments are float32 as they were trained,
the same whoever shared the work. A checkpoint that was changed is refused and named, never passed over in silence.
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
    """A checkpoint that is not what was written, or not one at all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A training after `step` steps, all tensors on the CPU.

    `drafter` are its parameters and the two maps of its vocabulary, by name; `optimizer` the moments, as
    `NAME.exp_avg`, `NAME.exp_avg_sq` and `NAME.step`; `random` the states of the generators, as `cpu.RANK` and
    `cuda.RANK`. `told` is what a reader wants to know of the drafter: plain JSON.
    """

    step: int
    drafter: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    random: Mapping[str, torch.Tensor]
    told: Mapping[str, Json]


def save(run: Path, snapshot: Snapshot) -> Path:
    """Write the checkpoint of a run's folder; its own folder. One that is there already stays. Raises OSError.

    Raises CheckpointError where a weight is not finite: such a checkpoint would be taken for good.
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
        files: dict[str, Json] = {}
        for name in PARTS:
            path = part / f"{name}.safetensors"
            save_file({key: tensor.contiguous() for key, tensor in getattr(snapshot, name).items()}, path)
            files[path.name] = _synced_sha256(path)
        told: dict[str, Json] = {"checkpoint": VERSION, "step": snapshot.step, "files": files, **snapshot.told}
        text = json.dumps({**told, SEAL: _seal(told)}, indent=2) + "\n"
        write_whole(part / STATE, lambda file: _write(file, text))
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


def load(place: Path) -> Snapshot:
    """The checkpoint in its folder. Raises CheckpointError, OSError."""
    state = read_state(place)
    parts = {name: _tensors(place / f"{name}.safetensors", state) for name in PARTS}
    kept = {key: value for key, value in state.items() if key not in {"checkpoint", "step", "files", SEAL}}
    return Snapshot(int(str(state["step"])), **parts, told=kept)


def read_state(place: Path) -> dict[str, Json]:
    """What the checkpoint says of itself. Raises CheckpointError."""
    path = place / STATE
    if not path.is_file():
        raise CheckpointError(f"{place} holds no {STATE}: give the folder of a checkpoint, {CHECKPOINTS}/step-…")
    try:
        state: dict[str, Json] = json.loads(path.read_bytes())
        if state["checkpoint"] != VERSION:
            raise CheckpointError(f"{path} is of version {state['checkpoint']}, this program knows {VERSION}")
        if state.pop(SEAL) != _seal(state):
            raise CheckpointError(f"{path} was changed since it was written. {_mend(place)}")
        _ = (int(str(state["step"])), dict(state["files"]))  # type: ignore[arg-type]  # whatever it is
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no checkpoint of this program ({error}). {_mend(place)}") from error
    return state


def _seal(state: Mapping[str, Json]) -> str:
    """The hash of all else that `state.json` says."""
    return hashlib.sha256(canonical(state)).hexdigest()


def all_of(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    home = run / CHECKPOINTS
    found = [path for path in home.iterdir() if NAME.fullmatch(path.name)] if home.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def newest(run: Path) -> Path | None:
    """The checkpoint that a run goes on from; None where it has none yet."""
    return next(reversed(all_of(run)), None)


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest `keep`, and what kills left behind. Raises OSError."""
    for path in all_of(run)[:-keep]:
        gone = aside(path)
        path.rename(gone)  # so that a kill in the middle leaves nothing that looks like a checkpoint
        shutil.rmtree(gone)
    for path in (run / CHECKPOINTS).glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _tensors(path: Path, state: Mapping[str, Json]) -> dict[str, torch.Tensor]:
    files = state["files"]
    wanted = files.get(path.name) if isinstance(files, dict) else None
    if not path.is_file() or _sha256(path) != wanted:
        raise CheckpointError(
            f"{path} {'was changed' if path.is_file() else 'is gone'} since it was written. {_mend(path.parent)}"
        )
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read ({error}). {_mend(path.parent)}") from error


def _mend(place: Path) -> str:
    return f"Put it back, or remove {place} and the run goes on from the checkpoint before it"


def _synced_sha256(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode("ascii"))
