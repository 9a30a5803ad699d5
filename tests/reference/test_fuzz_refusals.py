"""Mutated real rows keep their text; refusals of recorded Kimi answers are counted by reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measures import refusals
from harness.measures.fuzz import rows

EACH = 150


@pytest.mark.parametrize("dataset", rows.names())
def test_mutated_real_rows_keep_their_text(dataset: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTER_GATE_SHARED", str(shared))
    mutated = rows.MutatedRows(dataset, 6)

    assert [] == [(number, wrong) for number in range(EACH) if (wrong := mutated.case(number)[1])]


def test_no_refusal_of_a_recorded_kimi_answer_is_needless(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused of whole answers is refused for prompts that no template here is known to render."""
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", str(shared / "kimi"))
    found = refusals.harvested(shared / refusals.RECORDINGS)
    kimi = refusals.tally([refusals.verdict(*case) for case in refusals.cases(found)])["kimi"]

    assert {"accepted": 23, "refused": 62} == kimi["answers"]
    assert {} == kimi["needless"]
    assert {"prompt_mismatch": 8, "prompt_unsupported": 26, "seam_lossy": 1} == kimi["by_prompt"]
