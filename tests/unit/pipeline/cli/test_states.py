"""`python -m pipeline states --dry-run`: what is said of rows, target and size before anything is computed.

A dry run computes nothing, so it asks no gate; what the gate does stands in `tests/e2e/test_states.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.fixtures.drafters import row, run_folder
from harness.tiny_target.provenance import WEIGHTS
from pipeline.cli.main import main
from pipeline.formats.registry import TINY_SHA256
from pipeline.records import Evidence

GIVEN = [row(name, [768, 5], [7, 8, 770]) for name in "abcd"]
"""Five tokens each, three emitted."""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run", GIVEN, tokenizer_sha256=TINY_SHA256)


def dry(rows: Path, *options: str, target: Path = WEIGHTS) -> int:
    where = [str(rows), "--target", str(target), "--out", str(rows.parent / "store")]
    return main(["states", *where, "--device", "cpu", "--dry-run", *options])


def test_the_size_is_said_and_nothing_is_written(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """(3 * 20 + 12) states of 128 numbers in 2 bytes, and 20 ids."""
    assert 0 == dry(rows)

    said = capsys.readouterr()
    assert "4 rows of 20 tokens, 12 of them emitted\n" in said.err
    assert "the store takes 18.5 kB for 20 tokens, of which 12 emitted: 926 bytes a token; 1,028 if" in said.err
    assert f"it fits: 1 shards in {rows.parent / 'store'}. Nothing was computed\n" == said.out
    assert not (rows.parent / "store").exists()


def test_json_is_one_object_with_the_same(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry(rows, "--json", "--layers", "0,2,7", "--dtype", "float32")

    found = json.loads(capsys.readouterr().out)
    assert (True, 4, {}, [0, 2, 7], None) == tuple(
        found[key] for key in ("dry_run", "rows", "left_out", "layers", "counted_risk")
    )
    assert (20, 12, (3 * 20 + 12) * 128 * 4 + 80) == tuple(found["size"][key] for key in ("tokens", "emitted", "bytes"))


def test_rows_left_out_are_counted_and_a_risk_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [row("weak", [768], [770], Evidence.COUNTED), *GIVEN]
    rows = run_folder(tmp_path / "run", given, tokenizer_sha256=TINY_SHA256)

    assert 0 == dry(rows, "--longest", "2", "--min-evidence", "counted")

    said = capsys.readouterr().err
    assert "4 rows left out: too_long\n" in said
    assert "risk: 1 rows are of the grade counted" in said


@pytest.mark.parametrize(
    "options, why",
    [
        (("--longest", "4"), "no row is left to train on: 4 too_long. Raise what leaves them out above 4: --longest,"),
        (("--layers", "1,3,8"), "layers 1, 3, 8 do not ascend within 0..7"),
        (("--layers", "1,3"), "2 layers were named (1, 3): give three"),
        (("--device", "tpu"), "'tpu' is no device: give cpu or cuda"),
        (("--device", "meta"), "there is no meta here"),
        (("--target", "."), "holds no config.json with *.safetensors"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, tuple) else "",
)
def test_what_cannot_be_used_is_said_in_a_sentence(
    rows: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], why: str
) -> None:
    assert 2 == dry(rows, *options)

    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a,b,c", "", "1,,2", "1,2,-3"])
def test_layers_that_are_no_numbers_are_no_argument(rows: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        dry(rows, f"--layers={text}")

    assert f"{text!r} are no layers: give three numbers" in capsys.readouterr().err


def test_a_disk_without_room_is_said_with_both_numbers(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))

    assert 2 == dry(rows)

    assert "needs 20.6 kB and one shard beside it, and the disk has 1.0 kB left" in capsys.readouterr().err
