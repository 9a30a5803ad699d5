"""Work in a forked process: what it tells comes back as JSON, and it may be killed.

Guarantees: the child never goes on as its parent, whatever its work raises; a traceback of it goes to stderr. Fork only
where no thread runs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pipeline.records import Json


class ChildError(Exception):
    """A forked process ended without an answer."""


def forked(work: Callable[[], object], *, silent: bool = False) -> int:
    """The id of a forked process that does `work` and ends. `silent`: what it says on stderr is dropped."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if silent:
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - it ends with the process
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it ends here
        traceback.print_exc(file=sys.__stderr__)
    os._exit(code)


def told_by(work: Callable[[], Json], *, silent: bool = False) -> Json:
    """What `work` returns, done in a forked process. Raises ChildError."""
    reading, writing = os.pipe()

    def tell() -> None:
        os.close(reading)
        with os.fdopen(writing, "w") as file:
            json.dump(work(), file)

    child = forked(tell, silent=silent)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if status or not text:
        raise ChildError(f"a forked process ended with status {status}")
    told: Json = json.loads(text)
    return told
