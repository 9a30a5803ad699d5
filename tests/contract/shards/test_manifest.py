"""The manifest's folder: who may begin it, who holds it, whose it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from pipeline.shards import manifest
from pipeline.shards.manifest import FolderHeldError, Manifest, ManifestError, begin, hold, run_of

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("left", [(), (".manifest.json.tmp",), (".lock",), (".lock", ".manifest.json.tmp")])
def test_a_folder_with_only_our_own_leftovers_is_a_fresh_one(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        (tmp_path / name).write_text("{")

    assert ({"a": 1}, ()) == (begin(tmp_path, {"a": 1}).settings, begin(tmp_path, {"a": 1}).sessions)


@pytest.mark.parametrize("name", ["shard-00000.parquet", "quarantine.jsonl", ".shard-00000.parquet.tmp", "notes.txt"])
def test_a_folder_with_anything_else_is_not(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    (tmp_path / ".manifest.json.tmp").write_text("{")

    with pytest.raises(ManifestError, match=rf"holds {name} but no manifest\.json"):
        begin(tmp_path, {})


def test_a_folder_says_whose_it_is_once_it_was_begun(tmp_path: Path) -> None:
    before = run_of(tmp_path)
    manifest.write(tmp_path, Manifest("run-1", {}))
    after = run_of(tmp_path)
    (tmp_path / "manifest.json").write_text("{")

    assert (None, "run-1", None) == (before, after, run_of(tmp_path))


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with (
        hold(out),
        pytest.raises(FolderHeldError, match=rf"another run \(process {os.getpid()}\): wait for it, or give"),
    ):
        hold(out)

    hold(out).close()


def hold_until_killed(out: str) -> None:
    held = hold(Path(out))
    os.kill(os.getpid(), signal.SIGKILL)
    held.close()


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=hold_until_killed, args=(str(tmp_path),))
    process.start()
    process.join()

    assert -signal.SIGKILL == process.exitcode
    hold(tmp_path).close()
