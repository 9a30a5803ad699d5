"""Which contract tests execute which lines, and their seconds.

A plugin of pytest measures it in one run of the suite, by coverage.py with a context a test. Lines that run as a module
is imported belong to no test; every test that enters the module may notice them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from coverage import CoverageData

DATA, SECONDS = ".coverage", ".seconds.json"
PLUGIN: Final = "harness.measures.teeth.reach"


class Tracer:
    """Give every test a context of its own."""

    def __init__(self) -> None:
        import coverage

        self._coverage = coverage.Coverage(DATA, source=["pipeline"])
        self._seconds: dict[str, float] = {}
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            self._seconds[item.nodeid] = time.process_time() - start

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        Path(SECONDS).write_text(json.dumps(self._seconds))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tracer())


@dataclass(frozen=True, slots=True)
class Reach:
    """Tests by file and line, and the seconds of each."""

    folder: Path
    data: CoverageData
    seconds: dict[str, float]

    @classmethod
    def of(cls, folder: Path) -> Reach:
        """Read what a measured run left in `folder`."""
        from coverage import CoverageData

        data = CoverageData(str(folder / DATA))
        data.read()
        return cls(folder, data, json.loads((folder / SECONDS).read_text()))

    def tests(self, file: str, line: int) -> list[str]:
        """Return the tests that may notice a changed line.

        The quickest first. Of a line that no test executes by itself, those that enter its file.
        """
        lines = self.data.contexts_by_lineno(str(self.folder / file))
        found = set(lines.get(line, ())) - {""} or {test for tests in lines.values() for test in tests} - {""}
        return sorted(found, key=lambda test: self.seconds[test])
