"""Past fixes: which commits count, and what taking one back shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.measures.teeth.drift import fixes, judge_fixes
from harness.measures.teeth.runner import BROKEN

OLD, NEW = "def double(n):\n    return n + 2\n", "def double(n):\n    return 2 * n\n"


def commit(root: Path, subject: str, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.with_suffix(".py").parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["add", "-A"], [*own, "commit", "-q", "-m", subject]):
        subprocess.run(["git", "-C", str(root), *command], check=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    profile = 'from hypothesis import settings\n\nsettings.register_profile("teeth")\n'
    commit(tmp_path, "Begin", pipeline__a=OLD, harness__a="", tests__unit__test_a="", tests__conftest=profile)
    test = "from pipeline.a import double\n\n\ndef test_double():\n    assert 6 == double(3)\n"
    commit(tmp_path, "Double", pipeline__a=NEW, tests__contract__test_a=test)
    commit(tmp_path, "Code alone", pipeline__b="x = 1\n")
    commit(tmp_path, "Tests alone", tests__unit__test_a="x = 1\n")
    more = "from pipeline.c import ONE\n\n\ndef test_one():\n    assert 1 == ONE\n"
    commit(tmp_path, "Add a module", pipeline__c="ONE = 1\n", tests__contract__test_c=more)
    commit(tmp_path, "Say nothing new", pipeline__a=f"{NEW}\n\nTWO = 2\n", tests__unit__test_a="x = 2\n")
    return tmp_path


def test_a_fix_changes_code_and_tests(root: Path) -> None:
    assert ["Say nothing new", "Add a module", "Double", "Begin"] == [fix.subject for fix in fixes(9, root)]
    assert ["Say nothing new"] == [fix.subject for fix in fixes(1, root)]


def test_each_fix_is_taken_back_alone(root: Path) -> None:
    found = judge_fixes(9, 1, root)

    assert {"SURVIVED": 1, BROKEN: 1, "does not apply": 2} == dict(found)


def test_a_test_notices_a_fix_that_is_taken_back(root: Path) -> None:
    text = (root / "pipeline/a.py").read_text()
    commit(root, "Put back", pipeline__a=text.replace("\n\nTWO = 2\n", ""), tests__unit__test_a="x = 3\n")

    assert {"SURVIVED": 1, BROKEN: 1, "noticed by a test": 1, "does not apply": 2} == dict(judge_fixes(9, 1, root))
