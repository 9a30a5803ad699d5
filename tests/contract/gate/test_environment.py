"""The interpreter: each difference from what the contracts ran under is an objection that names it."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.trees import CLEAN
from pipeline.gate.environment import (
    isolation_objections,
    location_objections,
    lock_objections,
    observe,
    read_pins,
    start_objections,
)

pytestmark = pytest.mark.contract


def test_a_clean_interpreter_meets_no_objection(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("tiktoken==0.14.0\ntorch==2.13.0\n")

    objections = [
        *start_objections(CLEAN),
        *isolation_objections(CLEAN),
        *location_objections(CLEAN, tmp_path),
        *lock_objections(CLEAN, tmp_path),
    ]

    assert [] == objections


def test_what_is_observed_is_this_process() -> None:
    seen = observe()

    assert 0 == seen.optimize
    assert seen.modules["pipeline.gate.environment"].endswith("environment.py")
    assert "pytest" in {name.lower() for name, _ in seen.distributions}


def test_optimised_code_is_refused() -> None:
    (objection,) = start_objections(replace(CLEAN, optimize=1))

    assert "-O or PYTHONOPTIMIZE" in objection.what


def test_a_pythonpath_is_refused_and_named() -> None:
    (objection,) = start_objections(replace(CLEAN, pythonpath="/x"))

    assert "PYTHONPATH is '/x'" in objection.what
    assert "unset PYTHONPATH" == objection.mend


@pytest.mark.parametrize("field", ["isolated", "fresh_bytecode"])
def test_a_process_that_was_not_started_by_the_boot_is_refused(field: str) -> None:
    seen = replace(CLEAN, isolated=field != "isolated", fresh_bytecode=field != "fresh_bytecode")

    (objection,) = isolation_objections(seen)

    assert "not started isolated" in objection.what


def test_code_from_elsewhere_is_refused(tmp_path: Path) -> None:
    seen = replace(CLEAN, modules={"pipeline.gate.gate": "/elsewhere/pipeline/gate/gate.py"})

    (objection,) = location_objections(seen, tmp_path)

    assert f"pipeline.gate.gate was loaded from /elsewhere/pipeline/gate/gate.py, not from {tmp_path}" == objection.what


@pytest.mark.parametrize("name", ["pipeline/__init__.py", "pipeline.py", "harness/x.txt"])
def test_a_second_copy_on_the_path_is_refused(tmp_path: Path, name: str) -> None:
    """A package, a module, and a folder that Python takes as a namespace."""
    copy = tmp_path / "site-packages" / name
    copy.parent.mkdir(parents=True)
    copy.write_text("")
    seen = replace(CLEAN, search_path=(str(tmp_path / "root"), str(tmp_path / "site-packages")))

    (objection,) = location_objections(seen, tmp_path / "root")

    assert f"a second copy of {name.partition('/')[0].removesuffix('.py')} lies in" in objection.what


def test_a_second_copy_in_a_zip_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("pipeline/__init__.py", "")

    (objection,) = location_objections(replace(CLEAN, search_path=(str(tmp_path / "a.zip"),)), tmp_path / "root")

    assert "a second copy of pipeline" in objection.what


def test_another_version_than_the_pinned_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("tiktoken==0.13.0\ntorch==2.13.0\n")

    (objection,) = lock_objections(CLEAN, tmp_path)

    assert "installed packages differ from constraints.txt: tiktoken 0.14.0 (pinned: 0.13.0)" == objection.what
    assert "pip install -c constraints.txt tiktoken, then nox -s contract" == objection.mend


def test_a_package_that_is_not_pinned_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")

    (objection,) = lock_objections(CLEAN, tmp_path)

    assert "constraints.txt does not list what is installed: tiktoken 0.14.0" == objection.what
    assert "pip uninstall tiktoken" == objection.mend


def test_a_package_installed_twice_is_compared_twice(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("tiktoken==0.14.0\ntorch==2.13.0\n")
    seen = replace(CLEAN, distributions=(*CLEAN.distributions, ("tiktoken", "0.9.0")))

    (objection,) = lock_objections(seen, tmp_path)

    assert "tiktoken 0.9.0 (pinned: 0.14.0)" in objection.what


def test_a_local_version_label_counts_only_where_it_is_pinned(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("tiktoken==0.14.0\ntorch==2.13.0+cu130\n")

    (objection,) = lock_objections(CLEAN, tmp_path)

    assert "torch 2.13.0+cpu (pinned: 2.13.0+cu130)" in objection.what


def test_pins_are_read_without_markers_and_extras() -> None:
    text = "# a note\nPy_YAML.x==6.0  # why\nvcr[all]==9.4; python_version > '3'\nvcr==9.5 ; python_version < '3'\n\n"

    assert {"py-yaml-x": frozenset({"6.0"}), "vcr": frozenset({"9.4", "9.5"})} == read_pins(text)
