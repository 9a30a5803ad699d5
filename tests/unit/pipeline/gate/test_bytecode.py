"""Forged bytecode: what an import would take in place of the source, and is not the source."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
from pathlib import Path

import pytest

from pipeline.gate.digests import forged_caches


def compiled(root: Path, mode: py_compile.PycInvalidationMode) -> Path:
    """A true cache of a small module."""
    source = root / "pipeline" / "a.py"
    source.parent.mkdir()
    source.write_text("def answer() -> int:\n    return 41 + 1\n")
    return Path(py_compile.compile(str(source), doraise=True, invalidation_mode=mode) or "")


def forge(cache: Path) -> None:
    """Other code under the same header."""
    code = compile("def answer() -> int:\n    return 43\n", "a.py", "exec")
    cache.write_bytes(cache.read_bytes()[:16] + marshal.dumps(code))


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_a_true_cache_is_no_objection(tmp_path: Path, mode: py_compile.PycInvalidationMode) -> None:
    compiled(tmp_path, mode)

    assert [] == list(forged_caches(tmp_path))


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_other_code_under_a_header_that_imports_believe_is_found(
    tmp_path: Path, mode: py_compile.PycInvalidationMode
) -> None:
    forge(compiled(tmp_path, mode))

    (objection,) = forged_caches(tmp_path)

    assert "pipeline/__pycache__/a.cpython-311.pyc holds other code than its source" in objection.what.replace(
        f"cpython-{importlib.util.cache_from_source('a.py').partition('cpython-')[2].partition('.')[0]}", "cpython-311"
    )
    assert "find pipeline harness tests -name __pycache__ -exec rm -r {} + && nox -s contract" == objection.mend


def test_a_damaged_cache_is_found(tmp_path: Path) -> None:
    cache = compiled(tmp_path, py_compile.PycInvalidationMode.TIMESTAMP)
    cache.write_bytes(cache.read_bytes()[:20])

    assert 1 == len(list(forged_caches(tmp_path)))


def test_a_cache_that_imports_would_not_take_is_no_objection(tmp_path: Path) -> None:
    """Its source was edited later, so Python compiles anew."""
    forge(compiled(tmp_path, py_compile.PycInvalidationMode.TIMESTAMP))
    os.utime(tmp_path / "pipeline" / "a.py", (1, 1))

    assert [] == list(forged_caches(tmp_path))
