"""The table and the next command say what is so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.cli.report import print_summary
from pipeline.generation.summary import Summary
from pipeline.records import Json

ROWS = {"in_file": 3, "asked": 2, "from_ledger": 0, "done_before": 0, "accepted": 3, "refused": 0, "unknown": 0}
COST: dict[str, Json] = {"usd": "0.0100", "emulated": False, "budget_usd": "0.0100", "unsettled_requests": 0}
DONE = Summary(
    outcome="complete",
    code=0,
    message=None,
    folder="runs/a",
    route="emulator/chutes",
    rows=ROWS | {"left": 0, "beyond_limit": 0},
    by_evidence={"counted": 3},
    by_reason={},
    first_of_reason={},
    unknown_rows=(),
    tree_changed=(),
    prompt_tokens=1,
    output_tokens=1,
    cost=COST,
    counted={},
    shards=(),
)


def shown(summary: Summary, capsys: pytest.CaptureFixture[str], *again: str) -> str:
    print_summary(summary, again or ("generate", "--budget-usd", "0.01"))
    return " ".join(capsys.readouterr().out.replace("│", "").split())


def test_the_quarantine_is_named_only_where_rows_were_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused = replace(DONE, rows=dict(DONE.rows) | {"refused": 1}, by_reason={"malformed_input": 1})

    assert "quarantine" not in shown(DONE, capsys)
    assert "runs/a/quarantine.jsonl for what was refused" in shown(refused, capsys)


def test_a_refusal_is_shown_by_its_detail_or_its_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reasons = {"prompt_unsupported": 2, "usage_missing": 1}
    refused = replace(DONE, by_reason=reasons, first_of_reason={"prompt_unsupported": "needs 900 tokens"})

    said = shown(refused, capsys)

    assert "prompt_unsupported 2: the first: needs 900 tokens" in said
    assert "usage_missing 1: the answer carries no token counts" in said


@pytest.mark.parametrize("flag", [("--budget-usd", "0.01"), ("--budget-usd=0.01",)])
def test_a_spent_budget_is_not_offered_again(flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    message = "the next request could bring the spend to $0.0200 of $0.0100 a run: raise the cap to go on"
    spent = replace(DONE, outcome="budget spent", code=4, message=message)

    said = shown(spent, capsys, "generate", *flag, "--seed", "1")

    assert "generate --budget-usd MORE --seed 1" in said.replace("=", " ")


def test_a_spent_day_is_waited_for_with_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    message = "the next request could bring the spend to $1.1 of $1.0 a UTC day: go on after midnight UTC"
    spent = replace(DONE, outcome="budget spent", code=4, message=message)

    assert "generate --budget-usd 0.01" in shown(spent, capsys)


def test_rows_beyond_the_limit_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    limited = replace(DONE, outcome="complete within --limit", rows=dict(DONE.rows) | {"in_file": 9, "beyond_limit": 6})

    said = shown(limited, capsys)

    assert "rows in the file 9" in said
    assert "beyond --limit 6" in said
