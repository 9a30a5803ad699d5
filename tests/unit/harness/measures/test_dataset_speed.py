"""The bench's rows are those of the published schemas, and what it measures is the process that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measures.dataset_speed import SCHEMAS, Run, ran, write_parquet
from pipeline.datasets.registry import prompts_of
from pipeline.datasets.rows import Reject
from pipeline.records import Prompt

WITHOUT = {Reject.JOINED, Reject.REPEATED}


@pytest.mark.parametrize("name", SCHEMAS)
def test_rows_of_every_schema_become_prompts(name: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", SCHEMAS[name], 60)
    found = list(prompts_of(name, tmp_path / "rows.parquet"))

    assert 60 == len(found)
    assert set() == {one.reason for one in found if not isinstance(one, Prompt)} - WITHOUT


def test_a_run_tells_the_peak_memory_and_time_of_its_process() -> None:
    run = ran("held = b'x' * (200 << 20)")

    assert 200 <= run.peak < 300
    assert 0 < run.own


def test_a_run_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="it ended with status 3"):
        ran("raise SystemExit(3)", "it")


def test_on_idle_cores_the_slower_side_decides() -> None:
    assert (12.0, 6.0, 10.0) == (Run(9, 2, 10, 1).idle(1), Run(9, 2, 12, 1).idle(2), Run(9, 10, 12, 1).idle(2))
