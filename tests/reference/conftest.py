"""Where the reference material lies: `$DRAFTER_GATE_SHARED`.

Without it these tests skip and say so; with `$DRAFTER_GATE_REQUIRE_SHARED=1`, as in CI, its absence is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.datasets.decontaminate import asked_in, grams_of
from pipeline.datasets.prepare import RowFilter, TargetFormat
from pipeline.datasets.registry import DATASETS
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.reference)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material (vocabularies, recordings, renderings, faults)."""
    given = os.environ.get("DRAFTER_GATE_SHARED", "")
    folder = Path(given)
    if given and folder.is_dir():
        return folder
    reason = f"no reference material: DRAFTER_GATE_SHARED={given!r} is no folder. Set it to the folder that holds it"
    if os.environ.get("DRAFTER_GATE_REQUIRE_SHARED") == "1":
        pytest.fail(f"{reason}; DRAFTER_GATE_REQUIRE_SHARED=1 makes its absence an error.", pytrace=False)
    pytest.skip(f"{reason}.")


@pytest.fixture(scope="session")
def kimi_format(shared: Path) -> Format:
    """Kimi-K2.5 on its real vocabulary."""
    return open_format("kimi-k2.5", str(shared / "kimi"))


@pytest.fixture(scope="session")
def sieve(shared: Path) -> Callable[[str, int], RowFilter]:
    """A dataset's rows held to a limit in the tiny target's tokens, and to every evaluation set."""
    grams = grams_of(asked_in(shared / "datasets" / "evalsets")[0])
    fmt = open_format("tiny-kimi", None)
    return lambda dataset, most: RowFilter(DATASETS[dataset], TargetFormat(fmt, most), grams)


@pytest.fixture(scope="session")
def reports(shared: Path) -> dict[str, dict[str, Any]]:
    """The catalogue of real reports by id."""
    lines = (shared / "faults" / "reports.jsonl").read_bytes().splitlines()
    return {report["id"]: report for report in map(json.loads, lines)}
