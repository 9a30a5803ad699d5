"""What became of each test, from pytest's reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from harness.attestation.required import few
from pipeline.records import PROVE, Objection

COVERS = "drafter-gate covers"
"""Key of the user property that carries a (route, feature) pair of a test through xdist."""
EMPTY = "got empty parameter set"


@dataclass(slots=True)
class Outcomes:
    """Node ids by outcome.

    `covered` holds the (route, feature) pairs of tests that passed.
    """

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)
    xfailed: set[str] = field(default_factory=set)
    deselected: set[str] = field(default_factory=set)
    covered: set[tuple[str, str]] = field(default_factory=set)

    def add(self, report: pytest.TestReport) -> None:
        """Take one phase of one test.

        A subtest has its parent's node id and never stands for it.
        """
        if hasattr(report, "wasxfail"):
            self.xfailed.add(report.nodeid)
        elif report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            (self.empty if EMPTY in str(report.longrepr) else self.skipped).add(report.nodeid)
        elif report.when == "call" and not isinstance(report, pytest.SubtestReport):
            self.passed.add(report.nodeid)
            self.covered |= {(value[0], value[1]) for key, value in report.user_properties if key == COVERS}  # type: ignore[index]  # our own pairs

    def add_collection(self, report: pytest.CollectReport) -> None:
        """Take a module that failed or skipped itself."""
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)

    @property
    def whole(self) -> frozenset[str]:
        """Return the tests that passed and did nothing else."""
        return frozenset(self.passed - self.unfinished)

    @property
    def unfinished(self) -> frozenset[str]:
        """Return the tests that an objection names."""
        return frozenset(self.failed | self.skipped | self.empty | self.xfailed | self.deselected)

    def objections(self) -> Iterator[Objection]:
        """Yield an objection for each outcome but a pass."""
        kinds = (
            ("failed or had errors", self.failed, "python -m pytest {}"),
            ("were skipped", self.skipped, "python -m pytest -rs {}"),
            ("have an empty parameter set", self.empty, "python -m pytest -rs {}"),
            ("are marked xfail", self.xfailed, "python -m pytest -rxX {}"),
            ("were deselected", self.deselected, f"{PROVE} without selecting tests"),
        )
        for words, ids, mend in kinds:
            if ids:
                what = f"tests {words} ({len(ids)}): {few(sorted(ids))}"
                yield Objection(what, mend.format(f"'{min(ids)}'"))
        if not self.passed:
            yield Objection("no test passed", PROVE)


def mark_coverage(items: list[pytest.Item]) -> None:
    """Write each `covers` marker into its test's properties.

    Raises pytest.UsageError for a marker without features or route.
    """
    for item in items:
        for marker in item.iter_markers("covers"):
            routes = marker.kwargs.get("route", marker.kwargs.get("routes", ()))
            routes = (routes,) if isinstance(routes, str) else tuple(routes)
            features = (*marker.args, *marker.kwargs.get("features", ()))
            if not routes or not features:
                usage = "covers needs features and a route, as in covers('tools_declared', route='emulator/chutes')"
                raise pytest.UsageError(f"{item.nodeid}: {usage}")
            item.user_properties += [(COVERS, (route, feature)) for route in routes for feature in features]
