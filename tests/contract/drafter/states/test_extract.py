"""Writing a store: size, room, interruptions, settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.fixtures.drafters import row, run_folder, small_llama
from harness.fixtures.manifests import as_unsigned
from pipeline.drafter.rows import RowPolicy, TrainingRows, read_rows
from pipeline.drafter.states.extract import ExtractionPlan, extract, require_room
from pipeline.drafter.states.manifest import StoreError, computed_with, readable_size, size_of
from pipeline.drafter.states.shards import StateStore
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.shards.manifest import FolderHeldError, hold

pytestmark = pytest.mark.contract

ATTESTATION, OTHER = "cd" * 32, "ef" * 32
GIVEN = [row(name, [5, 3 + place], [1, 7, 40, 2]) for place, name in enumerate("abcdefg")]
"""Six tokens each, four emitted: (3 * 6 + 4) * 16 * 2 + 4 * 6 = 728 bytes in bfloat16."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TrainingRows:
    return read_rows([run_folder(tmp_path_factory.mktemp("rows") / "run", GIVEN)])


@pytest.fixture
def plan(target: Target, rows: TrainingRows) -> ExtractionPlan:
    return ExtractionPlan(
        target.facts, target.layers, rows, "bfloat16", computed_with(torch.float32, target.device), 1500
    )


class KilledError(Exception):
    """A kill, as far as a test can have one."""


def written(
    plan: ExtractionPlan, target: Target, out: Path, stop_at: int | None = None, attestation: str = ATTESTATION
) -> Path:
    def progress(done: int) -> None:
        if done == stop_at:
            raise KilledError

    extract(plan, target, out, attestation=attestation, progress=progress)
    return out


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


# Size and room


def test_the_size_counts_states_and_ids() -> None:
    size = size_of(1000, 400, 64, torch.bfloat16)

    assert ((3 * 1000 + 400) * 64 * 2 + 4000, 4 * 1000 * 64 * 2 + 4000) == (size.bytes, size.peers_bytes)
    assert str(size) == (
        "439.2 kB for 1,000 tokens, of which 400 emitted: 439 bytes a token; 516 if the last state were kept of every "
        "token, as peers do (15 % less)"
    )


def test_the_estimate_is_what_is_written_but_for_headers(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    folder = written(plan, target, tmp_path / "store")
    shards = [
        len(data) - 8 - int.from_bytes(data[:8], "little")
        for name, data in bytes_of(folder).items()
        if "states" in name
    ]

    assert 7 * 728 == plan.size.bytes == sum(shards)


def test_shards_take_as_many_rows_as_fit_and_one_at_least(plan: ExtractionPlan) -> None:
    assert [range(2), range(2, 4), range(4, 6), range(6, 7)] == plan.shards()
    assert [range(n, n + 1) for n in range(7)] == replace(plan, bytes_a_shard=1).shards()
    assert [range(7)] == replace(plan, bytes_a_shard=10**9).shards()


def test_a_disk_without_room_is_refused_before_computing(plan: ExtractionPlan, tmp_path: Path) -> None:
    """5,096 bytes of states, 512 for each row's line in a header, and one shard of 1,500 beside it."""
    require_room(plan, tmp_path / "store", free=5096 + 7 * 512 + 1500)

    with pytest.raises(StoreError, match=r"needs 8\.7 kB and one shard beside it, and the disk has 10\.2 kB left"):
        require_room(plan, tmp_path / "store", free=5096 + 7 * 512 + 1499)
    assert not (tmp_path / "store").exists()


def test_what_is_there_already_needs_no_room(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "store", stop_at=6)

    require_room(plan, tmp_path / "store", free=728 + 7 * 512 + 1500)


@pytest.mark.parametrize(
    "size, expected", [(999, "999 bytes"), (1500, "1.5 kB"), (35 * 10**12, "35.0 TB"), (2 * 10**15, "2000.0 TB")]
)
def test_amounts_are_said_in_units(size: int, expected: str) -> None:
    assert expected == readable_size(size)


# Stops


@pytest.mark.parametrize("stop_at", [0, 2, 4, 6])
def test_stopped_anywhere_and_run_again_it_has_the_same_bytes(
    plan: ExtractionPlan, target: Target, tmp_path: Path, stop_at: int
) -> None:
    whole = written(plan, target, tmp_path / "whole")
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "stopped", stop_at=stop_at)
    with pytest.raises(StoreError, match="is not whole yet"):
        StateStore(tmp_path / "stopped")

    written(plan, target, tmp_path / "stopped")

    assert bytes_of(whole) == bytes_of(tmp_path / "stopped")


def test_a_kill_before_the_manifest_entry_leaves_nothing(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    whole = written(plan, target, tmp_path / "whole")
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "stopped", stop_at=2)
    for name in ("states-00001.safetensors", ".states-00002.safetensors.tmp", ".manifest.json.tmp"):
        (tmp_path / "stopped" / name).write_bytes(b"half of it")

    written(plan, target, tmp_path / "stopped")

    assert bytes_of(whole) == {name: data for name, data in bytes_of(tmp_path / "stopped").items() if name[0] != "."}


def test_a_whole_store_is_left_as_it_is(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    before = bytes_of(written(plan, target, tmp_path / "store"))
    told: list[int] = []

    extract(plan, target, tmp_path / "store", attestation=ATTESTATION, progress=told.append)

    assert (before, [7]) == (bytes_of(tmp_path / "store"), told)


def test_a_store_of_unsigned_rows_is_not_signed(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    folder = as_unsigned(run_folder(tmp_path / "run", GIVEN))
    plan = replace(plan, rows=read_rows([folder], accept_unsigned=True), accept_unsigned=True)
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "store", stop_at=4)
    written(plan, target, tmp_path / "store")

    with pytest.raises(StoreError, match="has no signature"):
        StateStore(tmp_path / "store")


def test_a_store_that_nobody_signed_is_not_continued(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "store", stop_at=4)
    as_unsigned(tmp_path / "store")
    before = bytes_of(tmp_path / "store")

    with pytest.raises(StoreError, match="--accept-unsigned takes it"):
        written(plan, target, tmp_path / "store")
    assert before == bytes_of(tmp_path / "store")

    written(replace(plan, accept_unsigned=True), target, tmp_path / "store")
    assert not StateStore(tmp_path / "store", accept_unsigned=True).document.signed


def test_each_attestation_under_which_it_ran_is_named(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "store", stop_at=4)
    written(plan, target, tmp_path / "store", attestation=OTHER)

    assert (ATTESTATION, OTHER) == StateStore(tmp_path / "store").document.attestations


# Folders that are not ours


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda plan: replace(plan, layers=(0, 3, 4)), "layers"),
        (lambda plan: replace(plan, dtype="float32"), "dtype"),
        (lambda plan: replace(plan, bytes_a_shard=2000), "bytes_a_shard"),
        (lambda plan: replace(plan, computed={**plan.computed, "torch": "2.0"}), "computed.torch"),
        (lambda plan: replace(plan, facts=replace(plan.facts, weights_sha256=OTHER)), "target.weights_sha256"),
        (
            lambda plan: replace(plan, rows=TrainingRows(plan.rows.entries[:6], plan.rows.folders, RowPolicy(), {})),
            "rows.sha256",
        ),
    ],
)
def test_a_store_that_was_begun_otherwise_is_refused(
    plan: ExtractionPlan, target: Target, tmp_path: Path, change: Callable[[ExtractionPlan], ExtractionPlan], named: str
) -> None:
    before = bytes_of(written(plan, target, tmp_path / "store"))

    with pytest.raises(StoreError, match=rf"was begun with other settings \(.*{named} .*, now .*\)\. Give"):
        written(change(plan), target, tmp_path / "store")
    assert before == bytes_of(tmp_path / "store")


@pytest.mark.parametrize(
    "damage, why",
    [
        (lambda path: path.unlink(), "is gone since it was written"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "was changed since it was written"),
    ],
)
def test_a_store_whose_shards_changed_does_not_go_on(
    plan: ExtractionPlan, target: Target, tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    with pytest.raises(KilledError):
        written(plan, target, tmp_path / "store", stop_at=4)
    damage(tmp_path / "store" / "states-00000.safetensors")

    with pytest.raises(StoreError, match=why):
        written(plan, target, tmp_path / "store")


def test_a_folder_of_something_else_is_left_alone(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")

    with pytest.raises(StoreError, match=r"holds letter\.txt but no manifest\.json: give a new --out DIR"):
        written(plan, target, tmp_path)
    assert ["letter.txt"] == [path.name for path in tmp_path.iterdir()]


def test_a_file_is_no_folder(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(StoreError, match="is a file: give a folder"):
        written(plan, target, tmp_path / "file")


def test_two_at_once_are_refused(plan: ExtractionPlan, target: Target, tmp_path: Path) -> None:
    with hold(tmp_path / "store"), pytest.raises(FolderHeldError, match="is being written by another run"):
        written(plan, target, tmp_path / "store")
