"""Text that is not ours is shown with its control characters escaped."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from pipeline.base.redaction import redact
from pipeline.base.screen import escaped, say, say_logs, show, show_bytes, show_json, show_json_lines, show_table

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    "text, expected",
    [
        ("\x1b[2K\rallowed", "\\x1b[2K\\rallowed"),
        ("\x1b]8;;http://x\x07", "\\x1b]8;;http://x\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("one\ntwo\ttab", "one\\ntwo\\ttab"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("a\u200bb\u2028c\ufeffd\xade", "a\\u200bb\\u2028c\\ufeffd\\xade"),
        ("\ud800", "\\ud800"),
        ("naïve 中文 👩‍🚀"[:-2], "naïve 中文 👩"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(text: str, expected: str) -> None:
    assert expected == escaped(text)


def test_a_line_is_a_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb\r", "c")
    show("d\n\u202e")

    assert ("d\\n\\u202e\n", "a\\nb\\r\nc\n") == capsys.readouterr()


def test_what_a_provider_says_is_quoted_escaped() -> None:
    assert "No\\x1b[31m\\nallowed" == redact("No\x1b[31m\nallowed", 80)


FORGED = "x\x1b[2K\r\nallowed\x9b\u202e\u2028\x7f\ud800"


def test_json_is_the_same_json_and_obeyed_by_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({FORGED: [FORGED]})

    printed = capsys.readouterr().out
    assert {FORGED: [FORGED]} == json.loads(printed)
    assert printed.isascii()
    assert printed.removesuffix("\n").isprintable()


def test_lines_of_json_are_the_same_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = ['{"id": "naïve 中文"}', json.dumps({"id": FORGED[:-1]}, ensure_ascii=False)]
    show_json_lines("".join(f"{line}\n" for line in lines).encode())
    sys.stdout.flush()

    printed = capfdbinary.readouterr().out
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in printed.splitlines()]
    assert lines[0].encode() == printed.splitlines()[0]
    assert [] == [char for char in printed.decode() if char != "\n" and escaped(char) != char]


def test_bytes_go_out_as_they_are_but_to_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    show_bytes(b"\x1b[2K\nallowed\xff")
    sys.stdout.flush()
    piped = capfdbinary.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_bytes(b"\x1b[2K\nallowed\xff")

    assert b"\x1b[2K\nallowed\xff" == piped
    assert b"\\x1b[2K\nallowed\\xff\n" == capfdbinary.readouterr().out


def test_a_cell_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([("route", FORGED)], ("a", "b"), width=200)

    assert 1 == sum("allowed" in line for line in capsys.readouterr().out.splitlines())


def test_what_libraries_log_is_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(logging.getLogger("a.library"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("a.library"), "parent", None)
    say_logs()

    logging.getLogger("a.library").warning("a model of type %s", FORGED)

    assert f"warning: a model of type {escaped(FORGED)}\n" == capsys.readouterr().err
