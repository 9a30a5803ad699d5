"""The fixture `cassette`: a test names its recording, and is told what was recorded and nothing else.

Guarantees: replay only. Whether and how to record is no test's choice, so no marker, option or variable is read; a
recording that is not played to its end fails the test that opened it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TypeAlias

import pytest

from harness.cassettes.cassette import Cassette
from harness.cassettes.replay import replaying

OpenCassette: TypeAlias = Callable[[str], Cassette]


class _TestFailedError(Exception):
    """Ends the replays of a failed test without asking whether they were played out."""


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[OpenCassette]:
    """`cassette("emulator/chutes/stream")` answers every request from that file below `cassettes/`, until the end."""
    library = request.config.rootpath / "cassettes"
    failed_before = request.session.testsfailed
    with suppress(_TestFailedError), ExitStack() as stack:
        yield lambda name: stack.enter_context(replaying(library / f"{name}.yaml"))
        if request.session.testsfailed > failed_before:
            raise _TestFailedError  # a test that failed half-way has said enough
