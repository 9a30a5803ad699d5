"""The goldens regenerate here, token for token; the small form of `nox -s goldens -- --check`. Needs torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.goldens.cases import SMALL
from harness.goldens.extension import golden_path
from harness.goldens.golden import GoldenToken, dump_golden, read_golden
from harness.goldens.refresh import main


def test_the_small_set_regenerates(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--check", "--small"])

    assert (0, f"{len(SMALL)} of {len(SMALL)} goldens hold\n") == (status, capsys.readouterr().out)


def test_a_changed_golden_is_told_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = read_golden(golden_path("instant"))
    first = replace(golden.tokens[0], id=golden.tokens[0].id + 1)
    text = dump_golden(replace(golden, tokens=(first, *golden.tokens[1:])))
    golden_path("instant", tmp_path).write_text(text, "utf-8")

    status = main(["--check", "--only", "instant", "--goldens", str(tmp_path)])

    out = capsys.readouterr().out
    assert 1 == status
    assert "instant: first difference at token 0" in out
    assert "  same text, other id: " in out
    assert text == golden_path("instant", tmp_path).read_text("utf-8")


def test_what_is_made_is_what_is_committed(tmp_path: Path) -> None:
    """The seed that the search finds, the tokens and their runners-up; the digits of a logprob are the machine's."""
    status = main(["--only", "instant", "--only", "thinking", "--goldens", str(tmp_path)])

    assert 0 == status
    for case in ("instant", "thinking"):
        made, committed = read_golden(golden_path(case, tmp_path)), read_golden(golden_path(case))
        assert (committed.ids, committed.prompt_ids) == (made.ids, made.prompt_ids)
        assert [_close(token) for token in committed.tokens] == [_close(token) for token in made.tokens]


def _close(token: GoldenToken) -> tuple[int, int | None, bool]:
    """What another machine's rounding leaves alone."""
    return token.id, token.runner_up, token.logprob is not None


def test_no_weights_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--check", "--small", "--weights", str(tmp_path)])

    assert 2 == status
    assert "no tokenizer there" in capsys.readouterr().err
