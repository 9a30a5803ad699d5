"""Rows as other trainers read them."""

from __future__ import annotations

import hashlib
import json
import resource
from pathlib import Path

import pytest
import torch

from pipeline.drafter.export.training_inputs import TrainingInputError, hash_of, write_inputs
from pipeline.drafter.rows import TrainingRow
from pipeline.records import Evidence


def row(name: str, ids: list[int], prompt: int) -> TrainingRow:
    mask = torch.arange(len(ids)) >= prompt
    return TrainingRow(name, torch.tensor(ids), mask, Evidence.ENGINE_IDS, "B1")


ROWS = [row("a", [5, 3, 9, 2], 2), row("b", [70000, 2], 1)]


def test_ids_and_mask_are_those_of_the_row(tmp_path: Path) -> None:
    write_inputs(tmp_path / "out", ROWS, {})

    lines = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_bytes().splitlines()]

    assert [([5, 3, 9, 2], [0, 0, 1, 1]), ([70000, 2], [0, 1])] == [(o["input_ids"], o["loss_mask"]) for o in lines]
    assert {("input_ids", "loss_mask", "sha256")} == {tuple(line) for line in lines}


def test_the_hash_covers_ids_in_four_bytes_and_mask_in_one() -> None:
    data = b"\x05\x00\x00\x00\x70\x11\x01\x00" + b"\x00\x01"

    assert hashlib.sha256(data).hexdigest() == hash_of([5, 70000], [False, True])


def test_no_loader_takes_the_account_for_rows(tmp_path: Path) -> None:
    account = write_inputs(tmp_path / "out", ROWS, {"folders": []})

    document = json.loads((tmp_path / "out" / "rows.manifest").read_bytes())

    assert ["rows.jsonl"] == [path.name for path in (tmp_path / "out").rglob("*.json*")]
    assert (2, 6, 3, 4) == (account.rows, account.tokens, account.supervised, account.longest)
    assert {
        "rows": 2,
        "tokens": 6,
        "supervised_tokens": 3,
        "longest_row": 4,
        "sha256": hashlib.sha256((tmp_path / "out" / "rows.jsonl").read_bytes()).hexdigest(),
        "source": {"folders": []},
    } == document


def test_a_row_without_emitted_tokens_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match="row 'c' has 2 ids, 2 marks, 0 of them emitted"):
        write_inputs(tmp_path / "out", [*ROWS, row("c", [1, 2], 2)], {})

    assert [] == list((tmp_path / "out").iterdir())


def test_no_row_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match="no row to write"):
        write_inputs(tmp_path / "out", [], {})


@pytest.mark.parametrize("room", [100, 400], ids=["less than the rows", "the rows and not their account"])
def test_a_full_disk_leaves_no_file_and_a_reusable_folder(tmp_path: Path, room: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_inputs(tmp_path / "out", ROWS, {"folders": ["x" * room]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert [] == list((tmp_path / "out").iterdir())
    write_inputs(tmp_path / "out", ROWS, {})
    assert ["rows.jsonl", "rows.manifest"] == sorted(path.name for path in (tmp_path / "out").iterdir())


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()

    with pytest.raises(TrainingInputError, match="is not empty"):
        write_inputs(tmp_path, ROWS, {})
