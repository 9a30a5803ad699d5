"""The table of reasons: closed, one line of meaning each, and the one that is committed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from pipeline.cli.reasons import table
from pipeline.records import MEANINGS, Reason

ROOT = Path(__file__).parents[4]


def test_the_committed_table_is_the_generated_one() -> None:
    """Run `python -m pipeline reasons > docs/reasons.md` after a change of the reasons."""
    assert table() == (ROOT / "docs" / "reasons.md").read_text(encoding="utf-8")


def test_every_reason_has_one_line_of_meaning() -> None:
    assert list(Reason) == list(MEANINGS)
    assert [] == [meaning for meaning in MEANINGS.values() if not meaning or "\n" in meaning]


def test_the_command_prints_the_table() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "reasons"], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert (0, table(), "") == (done.returncode, done.stdout, done.stderr)


# Where


PLACES = {"field", "char_offset", "token_position", "None"}  # None: passed on as `**where`
KNOWS_ONLY_TEXT = {"records.py: of", "tokenizer.py: _unencodable"}
"""Where a refusal is made of another one, or of a text whose field only the caller knows."""


def unplaced(path: Path) -> list[str]:
    return [
        f"{path.name}: {function.name}"
        for function in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("RefusedError", "Refusal")
        if not PLACES & {str(keyword.arg) for keyword in call.keywords}
    ]


def test_every_refusal_says_where_it_was_seen() -> None:
    found = [name for path in sorted((ROOT / "pipeline").rglob("*.py")) for name in unplaced(path)]

    assert KNOWS_ONLY_TEXT == set(found)
