"""The measures in their small form: a survey of the emulated routes against the ids that were sampled. Needs torch."""

from __future__ import annotations

import pytest

from harness.emulator.survey import questions
from harness.measures import fidelity, fingerprints
from harness.measures.fidelity import needless
from harness.views.roundtrip import trips
from pipeline.formats.registry import open_format
from pipeline.records import Evidence, Refusal, TokenRow


@pytest.fixture(scope="module")
def verdicts() -> list[fidelity.FidelityVerdict]:
    return fidelity.measure(each=5, resegment=0.2, seed=91_000_000)


def test_no_row_is_wrong_beyond_the_stated_risk(verdicts: list[fidelity.FidelityVerdict]) -> None:
    assert [] == fidelity.report(verdicts)["wrong"]


def test_every_grade_is_given_and_none_but_counted_is_ever_wrong(verdicts: list[fidelity.FidelityVerdict]) -> None:
    accepted = [(verdict.row.evidence, verdict.wrong) for verdict in verdicts if isinstance(verdict.row, TokenRow)]

    assert set(Evidence) == {evidence for evidence, _ in accepted}
    assert {Evidence.COUNTED} >= {evidence for evidence, wrong in accepted if wrong}


def test_no_refusal_is_needless(verdicts: list[fidelity.FidelityVerdict]) -> None:
    fmt = open_format("tiny-kimi")
    refused = [(verdict.exchange, verdict.row) for verdict in verdicts if isinstance(verdict.row, Refusal)]

    assert [] == [refusal for exchange, refusal in refused if needless(exchange, refusal, fmt)]


def test_the_report_reads_as_a_table(verdicts: list[fidelity.FidelityVerdict]) -> None:
    table = fidelity.table(fidelity.report(verdicts))

    assert table.startswith(f"answers {len(verdicts)}, sampled non-canonically ")
    assert table.endswith("wrong beyond the stated risk: []\n")


def test_committed_fingerprints_are_what_emulated_routes_do(capsys: pytest.CaptureFixture[str]) -> None:
    found = fingerprints.measure(each=30)

    assert 0 == fingerprints.check(found), capsys.readouterr().out
    assert 6 == len(found)
    assert any(trait.proven for one in found for trait in one.traits.values())


def test_every_way_to_ask_is_asked_with_a_seed_of_its_own() -> None:
    asked = list(questions(trips(), 3, seed=1))

    assert len(asked) == len({question.seed for question in asked}) == len({question.prompt.id for question in asked})
