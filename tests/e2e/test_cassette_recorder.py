"""`python -m harness cassettes record`: a real emulator over a real socket, and one sentence where it cannot. Torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cassettes.cassette import read_cassette
from harness.cassettes.record import main
from harness.cassettes.replay import EMULATOR_URL
from harness.cassettes.staleness import emulator_digests, stale_emulator
from pipeline.base.paths import ROOT

NAME = "emulator/chutes/content_only"


def test_a_cassette_is_recorded_with_its_true_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["record", "--only", NAME, "--library", str(tmp_path / "cassettes")])

    recorded = read_cassette(tmp_path / "cassettes" / f"{NAME}.yaml")
    committed = read_cassette(ROOT / "cassettes" / f"{NAME}.yaml")
    assert 0 == status
    assert f"{NAME}: recorded with seed" in capsys.readouterr().out
    assert f"{EMULATOR_URL}/chat/completions" == recorded.interactions[0].uri
    assert committed.interactions[0].request_body == recorded.interactions[0].request_body
    assert committed.provenance.oracle == recorded.provenance.oracle
    assert None is stale_emulator(recorded, emulator_digests(ROOT))


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--only", "nowhere"], "no cassette's name holds 'nowhere'"),
        (["--weights", "absent"], "no tokenizer there"),
    ],
)
def test_what_cannot_be_recorded_is_one_sentence(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*arguments, "--library", str(tmp_path)])

    assert 2 == status
    assert says in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
