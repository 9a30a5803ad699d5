"""Named mutants: each fits the tree that lies here."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measures.teeth.mutants import MutantError, named_mutants
from pipeline.gate.kills import MUTATED

MANY = 120


def test_named_mutants_fit_the_tree() -> None:
    """A promise whose code has moved is broken by nothing any more."""
    found = named_mutants()

    assert len(found) >= MANY
    assert len(found) == len({mutant.promise for mutant in found})


def test_every_mutated_file_counts_for_the_table() -> None:
    assert [] == [mutant.file for mutant in named_mutants() if not mutant.file.startswith(MUTATED)]


@pytest.mark.parametrize(
    "old, new, said",
    [("a = 1", "a = 2", "stands 2 times"), ("b", "c", "stands 0 times"), ("x = 3", "x =", "invalid syntax")],
)
def test_a_mutant_that_does_not_fit_is_an_error(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("a = 1\na = 1\nx = 3\n")
    (tmp_path / "named.toml").write_text(
        f'[[mutant]]\npromise = "p"\nfile = "m.py"\nold = "{old}"\nnew = "{new}"\n',
    )

    with pytest.raises(MutantError, match=said):
        named_mutants(tmp_path, tmp_path / "named.toml")


def test_a_mutant_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("a = 1\n\nif a:\n    b = 2\n")
    (tmp_path / "named.toml").write_text('[[mutant]]\npromise = "p"\nfile = "m.py"\nold = "if a:"\nnew = "if False:"\n')

    (mutant,) = named_mutants(tmp_path, tmp_path / "named.toml")

    assert (3, "a = 1\n\nif False:\n    b = 2\n") == (mutant.line, mutant.text)
