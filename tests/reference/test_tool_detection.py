"""Tool detection on the labelled rows, and on evaluation sets that declare no tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measures.tool_detection import RECALL, detect

TOOLLESS = ("eagle", "spec_bench")


def test_no_false_alarm_and_nearly_all_tool_rows_found(shared: Path) -> None:
    found = detect([shared / "datasets" / "tool_detection.jsonl"])

    assert found.judged.total() > 50
    assert 0 == found.false_alarms, found.wrong
    assert found.recall >= RECALL, found.wrong


def test_calls_and_mere_offers_are_told_apart(shared: Path) -> None:
    found = detect([shared / "datasets" / "tool_detection.jsonl"])

    assert [] == [wrong for wrong in found.wrong if "none" not in wrong[1:]]


def test_evaluation_prompts_without_tools_are_not_hit(shared: Path) -> None:
    folder = shared / "datasets" / "evalsets"

    found = detect([path for name in TOOLLESS for path in sorted((folder / name).rglob("*.jsonl"))])

    assert found.toolless > 200
    assert [] == found.hits


@pytest.mark.parametrize("dataset", ["B3_Magicoder", "B6_UltraChat"])
def test_chat_and_code_rows_are_not_hit(dataset: str, shared: Path) -> None:
    from pipeline.datasets.audit import Auditor, audited_rows
    from pipeline.datasets.control_text import ControlText
    from pipeline.datasets.features import Feature
    from pipeline.datasets.registry import DATASETS
    from pipeline.records import ToolMode

    name = dataset.partition("_")[0]
    auditor = Auditor(name, ToolMode.RAW, ControlText((), ()))
    sources = sorted((shared / "datasets" / dataset).glob("*[k0-9t].jsonl"))

    rows = [row for path in sources for row in audited_rows(auditor, DATASETS[name], path)]

    assert rows
    assert [] == [row for row in rows if {Feature.TOOLS_DECLARED, Feature.TOOL_TRANSCRIPT} & row.found.keys()]
