"""Checkpoints: whole or absent, and checked on reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pipeline.drafter.training.checkpoints import CheckpointError, Snapshot, all_of, load, newest, prune, save

pytestmark = pytest.mark.contract


def snapshot(step: int = 3) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    return Snapshot(
        step,
        drafter={"fc.weight": torch.randn(4, 3, generator=generator), "t2d": torch.tensor([True, False])},
        optimizer={"fc.weight.exp_avg": torch.randn(4, 3, generator=generator), "fc.weight.step": torch.tensor(3.0)},
        random={"cpu.0": torch.get_rng_state()},
        description={"target_weights_sha256": "ab" * 32},
    )


def test_what_is_read_is_what_was_written_bit_for_bit(tmp_path: Path) -> None:
    given = snapshot()

    found = load(save(tmp_path, given))

    assert (3, {"target_weights_sha256": "ab" * 32}) == (found.step, found.description)
    for name in ("drafter", "optimizer", "random"):
        mine, its = getattr(given, name), getattr(found, name)
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[key], its[key]) and mine[key].dtype == its[key].dtype for key in mine)


def test_the_newest_is_the_one_of_the_latest_step(tmp_path: Path) -> None:
    assert None is newest(tmp_path)
    for step in (9, 10, 100_000_000, 2):
        save(tmp_path, snapshot(step))

    assert "step-100000000" == (newest(tmp_path) or tmp_path).name
    assert ["step-00000002", "step-00000009"] == [path.name for path in all_of(tmp_path)][:2]


@pytest.mark.parametrize("name", ["drafter.safetensors", "optimizer.safetensors", "random.safetensors"])
def test_a_changed_byte_is_refused_with_file_and_remedy(tmp_path: Path, name: str) -> None:
    place = save(tmp_path, snapshot())
    data = bytearray((place / name).read_bytes())
    data[-1] ^= 1
    (place / name).write_bytes(data)

    with pytest.raises(CheckpointError, match=rf"{name} was changed since it was written. Put it back, or remove"):
        load(place)


def test_a_file_that_is_gone_is_said_so(tmp_path: Path) -> None:
    place = save(tmp_path, snapshot())
    (place / "optimizer.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"optimizer.safetensors is gone"):
        load(place)


@pytest.mark.parametrize("change", [{"step": 1}, {"step": -3}, {"step": 10**9}, {"target_weights_sha256": "cd" * 32}])
def test_a_state_that_was_changed_is_refused(tmp_path: Path, change: dict[str, int | str]) -> None:
    place = save(tmp_path, snapshot())
    state = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps(state | change))

    with pytest.raises(CheckpointError, match=r"state\.json was changed since it was written\. Put it back, or remove"):
        load(place)


@pytest.mark.parametrize("text", ["", "[]", '{"checkpoint": 2}', "{"])
def test_a_state_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    place = save(tmp_path, snapshot())
    (place / "state.json").write_text(text)

    with pytest.raises(CheckpointError, match="is no checkpoint of this program"):
        load(place)


def test_another_version_is_named(tmp_path: Path) -> None:
    place = save(tmp_path, snapshot())
    state = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps(state | {"checkpoint": 1}))

    with pytest.raises(CheckpointError, match="of version 1, this program knows 2"):
        load(place)


def test_what_a_kill_left_is_no_checkpoint_and_is_swept_away(tmp_path: Path) -> None:
    save(tmp_path, snapshot(1))
    left = tmp_path / "checkpoints" / ".step-00000002.tmp"
    left.mkdir()
    (left / "drafter.safetensors").write_bytes(b"half")

    assert ["step-00000001"] == [path.name for path in all_of(tmp_path)]
    prune(tmp_path, 2)
    assert not left.exists()


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, snapshot(step))

    prune(tmp_path, 2)

    assert ["step-00000004", "step-00000005"] == sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_a_checkpoint_that_is_there_stays(tmp_path: Path) -> None:
    place = save(tmp_path, snapshot())
    before = (place / "state.json").stat().st_mtime_ns

    assert place == save(tmp_path, snapshot())
    assert before == (place / "state.json").stat().st_mtime_ns


def test_a_weight_that_is_no_number_is_not_kept(tmp_path: Path) -> None:
    broken = Snapshot(3, {"fc.weight": torch.tensor([1.0, torch.nan])}, {}, {}, {})

    with pytest.raises(CheckpointError, match=r"fc\.weight is not finite after step 3"):
        save(tmp_path, broken)
    assert [] == all_of(tmp_path)
