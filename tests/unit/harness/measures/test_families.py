"""The table of families: draws that come back are counted, and one planted fault makes the command fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.measures import families
from harness.strategies import properties
from harness.strategies import suite as suites
from harness.views.roundtrip import true_fingerprint
from pipeline.formats.registry import FORMATS
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Reason, Refusal, TokenRow

TINY = ("--family", "tiny-kimi", "--workers", "1")
DRAWS = 60


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No vocabulary but the embedded one."""
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", "")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def counts(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    found: dict[str, int] = json.loads(capsys.readouterr().out)["families"]["tiny-kimi"]
    return found


def test_every_draw_is_counted_by_what_became_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == families.main([*TINY, "--draws", str(DRAWS), "--json"])

    found = counts(capsys)
    assert (DRAWS, DRAWS) == (found["lossless"], found["lossless_equal"] + found["lossless_repeats"])
    assert (DRAWS, DRAWS) == (found["lossy"], found["lossy_refused"])
    assert DRAWS == found["hostile"] == found["hostile_right"] + found["hostile_refused"] + found["hostile_risk"]
    assert 0 == found["wrong"] == found["broken"]


def test_a_seed_draws_the_same_answers_in_one_process_or_two() -> None:
    names = ["tiny-kimi", "tiny-kimi"]
    alike = [replace(tally, seconds=0.0) for n in (1, 2) for tally in families.measured(names, 20, 7, n)]
    other = replace(families.measure("tiny-kimi", 20, 8), seconds=0.0)

    assert [alike[0]] * 4 == alike
    assert alike[0] != other


def shortened(*given: object) -> TokenRow | Refusal:
    """A rebuild that loses the first token."""
    row = reconstruct(*given)  # type: ignore[arg-type]  # what reconstruct itself was given
    return replace(row, output_ids=row.output_ids[1:]) if isinstance(row, TokenRow) else row


def test_a_rebuild_that_loses_a_token_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(properties, "reconstruct", shortened)
    assert 1 == families.main([*TINY, "--draws", str(DRAWS)])

    told = capsys.readouterr().out.splitlines()
    assert int(told[1].split()[-1]) > DRAWS
    assert f"tiny-kimi: {told[1].split()[-1]} promises broken" == told[4]
    assert families.SHOWN == len(told[5:])


def test_a_refused_lossless_answer_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It fails though no row is wrong."""
    monkeypatch.setattr(properties, "reconstruct", lambda *_: Refusal(Reason.COUNT_MISMATCH, "planted"))
    assert 1 == families.main([*TINY, "--draws", str(DRAWS), "--json"])

    found = counts(capsys)
    assert (DRAWS, 0) == (found["broken"], found["wrong"])


def crashing(*_: object) -> TokenRow | Refusal:
    raise KeyError("planted")


def test_a_rebuild_that_crashes_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(properties, "reconstruct", crashing)
    assert 1 == families.main([*TINY, "--draws", str(DRAWS)])

    assert "  crashed: KeyError('planted')" == capsys.readouterr().out.splitlines()[-1]


def test_a_lossy_answer_that_is_accepted_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = replace(suites.LOSSY[0].profile, seam=suites.LOSSLESS[0].profile.seam, recounts_stream=False)
    monkeypatch.setattr(properties, "true_fingerprint", lambda _, **given: true_fingerprint(kept, **given))
    assert 1 == families.main([*TINY, "--draws", str(DRAWS), "--json"])

    assert counts(capsys)["wrong"] > 0


@pytest.mark.usefixtures("alone")
def test_families_without_a_vocabulary_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == families.main(["--draws", "3"])

    told = capsys.readouterr().out
    named = [line.split()[0] for line in told.splitlines() if "absent" in line]
    assert sorted(FORMATS.keys() - {"tiny-kimi"}) == named


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["glm-5", "no-such-family"])
def test_a_named_family_that_cannot_be_measured_is_an_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == families.main(["--family", name])
    assert name in capsys.readouterr().err
