r"""The one writer to the terminal, safe for foreign text.

Guarantees: what is shown moves no cursor, rings no bell, reverses no line and begins none, in a terminal and in a log
alike. Providers' errors, models' names and rows' texts were seen to hold escape sequences that forged a line "allowed".
A line is a line by construction: each argument of `say` and `show` is one, and a line feed within it is shown as `\n`,
so nobody need know which part of a message came from elsewhere. JSON is escaped as JSON, and reads the same.

Nothing else in `pipeline` and `harness` writes to stdout or stderr, or uses rich; `tests/unit/test_repo.py` holds that.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Control, format and direction characters, invisible ones, and halves of surrogate pairs."""


def escaped(text: str) -> str:
    r"""Return the text with what a terminal obeys escaped.

    As `\x1b`, `\n` or `\u202e`.

    >>> print(escaped("done\x1b[2K\rallowed"))
    done\x1b[2K\rallowed
    """
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def _escape(char: str) -> str:
    return repr(char)[1:-1] if not char.isprintable() else f"\\u{ord(char):04x}"


def say(*lines: str) -> None:
    """Write lines to stderr, at once."""
    _write(sys.stderr, lines)


def show(*lines: str) -> None:
    """Write lines to stdout, at once."""
    _write(sys.stdout, lines)


def show_columns(*cells: str) -> None:
    """Write a line to stdout, a tab between its cells."""
    sys.stdout.write("\t".join(map(escaped, cells)) + "\n")


def show_text(text: str) -> None:
    """Write a text of our own lines to stdout."""
    show(*text.removesuffix("\n").split("\n"))


def _write(stream: TextIO, lines: Sequence[str]) -> None:
    stream.write("".join(f"{escaped(line)}\n" for line in lines))
    stream.flush()


def show_json(value: object, *, indent: int | None = None) -> None:
    """Write a value to stdout as JSON."""
    sys.stdout.write(json.dumps(value, indent=indent).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def show_json_lines(data: bytes) -> None:
    """Write lines of JSON to stdout, as bytes.

    The same JSON: in its strings, what a terminal obeys is escaped.
    """
    if not data.isascii() or b"\x7f" in data:
        text = data.decode("utf-8", "surrogatepass")
        data = _UNSAFE.sub(
            lambda found: found[0] if found[0] in "\r\n\t" else json.dumps(found[0])[1:-1], text
        ).encode()
        data = data.replace(b"\x7f", b"\\u007f")
    sys.stdout.buffer.write(data)


def show_bytes(data: bytes) -> None:
    """Write bytes to stdout, unchanged but on a terminal.

    There they are shown as text, escaped line by line.
    """
    if sys.stdout.isatty():
        show(*data.decode("utf-8", "backslashreplace").split("\n"))
    else:
        sys.stdout.buffer.write(data)


def say_traceback(error: BaseException) -> None:
    """Write a traceback to stderr.

    Behind a bar, so that no line of a message looks like one of ours.
    """
    say(*(f"| {line}" for part in traceback.format_exception(error) for line in part.rstrip("\n").split("\n")))


class LogLines(logging.Handler):
    """Writes what libraries log to stderr, as `say` does."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        say(f"{record.levelname.lower()}: {record.getMessage()}")


def say_logs() -> None:
    """Let libraries' warnings go to stderr escaped."""
    logging.lastResort = LogLines(logging.WARNING)


def say_logs_of_transformers() -> None:
    """Let warnings of transformers go the same way.

    It has a handler of its own, and its warnings repeat what a model's files say. Its bars of progress go nowhere.
    """
    from transformers.utils import logging as its

    its.disable_progress_bar()
    its.disable_default_handler()
    its.enable_propagation()
    say_logs()


def show_headed(head: str, style: str, rest: str) -> None:
    """Write a line to stdout, its head in colour."""
    from rich.text import Text

    _console(stderr=False).print(Text(escaped(head), style), escaped(rest), sep="", soft_wrap=True)


def show_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), *, width: int | None = None) -> None:
    """Write a table to stdout.

    As wide as the terminal, elsewhere as `width` says.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, show_header=bool(header))
    for row in rows:
        table.add_row(*(Text(escaped(cell)) for cell in row))
    _console(stderr=False, width=None if sys.stdout.isatty() else width).print(table)


class Bar:
    """A bar of progress."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def update(self, done: int, total: int, state: str = "") -> None:
        """Show so many done, and a state beside them."""
        self._progress.update(self._task, completed=done, total=total, description=escaped(state))


@contextmanager
def progress_bar() -> Iterator[Bar | None]:
    """Show a bar on stderr; None where none can be."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = _console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    state = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(), MofNCompleteColumn(), state, TimeRemainingColumn(), console=console) as progress:
        yield Bar(progress, progress.add_task("", total=None))


def _console(*, stderr: bool, width: int | None = None) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, width=width)
