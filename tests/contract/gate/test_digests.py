"""Digests of the tree: dirHash1, what is refused or ignored; code at the root; forged bytecode."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from harness.fixtures.trees import small_tree
from pipeline.gate.digests import (
    FORBIDDEN,
    SUBJECTS,
    DigestError,
    algorithm,
    changed,
    dir_hash1,
    forged_caches,
    tree_digests,
    unhashed_code,
)

pytestmark = pytest.mark.contract


def folder(path: Path) -> Path:
    """The files of which `find . -type f | cut -c3- | LC_ALL=C sort | xargs sha256sum | sha256sum` was taken."""
    (path / "sub").mkdir(parents=True)
    for name, text in {"a.txt": "hello\n", "sub/b.txt": "x", "sub/ä b": "", "Z": "q"}.items():
        (path / name).write_text(text, "utf-8")
    return path


def test_dir_hash1_is_what_the_shell_pipeline_gives(tmp_path: Path) -> None:
    assert dir_hash1(folder(tmp_path)) == "82be25f7ba06cf0130524d89d75dd4c408d9db99eaea3036c6a872fa0a59b509"


@pytest.mark.parametrize("name", ["__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"])
def test_caches_are_ignored_at_any_depth(tmp_path: Path, name: str) -> None:
    before = dir_hash1(folder(tmp_path))

    (tmp_path / "sub" / name).mkdir()
    (tmp_path / "sub" / name / "x.pyc").write_text("x")

    assert before == dir_hash1(tmp_path)


def test_a_sourceless_module_beside_the_sources_is_hashed(tmp_path: Path) -> None:
    before = dir_hash1(folder(tmp_path))

    (tmp_path / "sub" / "x.pyc").write_text("x")

    assert before != dir_hash1(tmp_path)


@pytest.mark.parametrize("name", ["link", "__pycache__"])
def test_a_symbolic_link_is_refused(tmp_path: Path, name: str) -> None:
    (folder(tmp_path) / name).symlink_to(tmp_path / "sub")

    with pytest.raises(DigestError, match="is a symbolic link, whose target no digest covers: replace it"):
        dir_hash1(tmp_path)


def test_a_linked_subject_is_refused(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    (tree.root / "goldens").rename(tmp_path / "elsewhere")
    (tree.root / "goldens").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(DigestError, match="goldens is a symbolic link"):
        tree_digests(tree.root)


def test_a_special_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(folder(tmp_path) / "pipe")

    with pytest.raises(DigestError, match="pipe is no regular file"):
        dir_hash1(tmp_path)


def test_a_name_that_no_line_can_carry_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path) / "a\nb").write_text("")

    with pytest.raises(DigestError, match="has a line break or a backslash in its name: rename it"):
        dir_hash1(tmp_path)


@pytest.mark.parametrize("subject", ["pipeline/", "constraints.txt"])
def test_a_missing_subject_is_refused_by_name(tmp_path: Path, subject: str) -> None:
    tree = small_tree(tmp_path)
    (tree.root / subject).rename(tmp_path / "gone")

    with pytest.raises(DigestError, match=subject.rstrip("/")):
        tree_digests(tree.root)


def test_every_subject_has_a_digest_by_the_algorithm_of_its_kind(tmp_path: Path) -> None:
    digests = tree_digests(small_tree(tmp_path).root)

    assert set(SUBJECTS) == set(digests)
    assert {"dirHash1", "sha256"} == {algorithm(name) for name in digests}
    assert {64} == {len(digest) for digest in digests.values()}


def test_a_subject_that_came_or_went_is_a_change() -> None:
    assert ("a", "c") == changed({"a": "1", "b": "2"}, {"b": "2", "c": "3"})


@pytest.mark.parametrize("name", sorted(small for small in ("pipeline/gate/gate.py", "goldens/a.json", "noxfile.py")))
def test_one_changed_byte_changes_its_subject_alone(tmp_path: Path, name: str) -> None:
    root = small_tree(tmp_path).root
    before = tree_digests(root)

    with (root / name).open("ab") as file:
        file.write(b" ")

    assert (name if "/" not in name else f"{name.partition('/')[0]}/",) == changed(before, tree_digests(root))


@pytest.mark.parametrize(
    "name",
    [
        *FORBIDDEN,
        *("json.py", "openai.so", f"orjson{EXTENSION_SUFFIXES[0]}", "orjson.pyc", "noxfile.pyc"),
        *(
            "tiktoken/__init__.py",
            "orjson/__init__.pyc",
            f"orjson/__init__{EXTENSION_SUFFIXES[0]}",
            "orjson/__init__.so",
        ),
        *("google/auth.py", "google/cloud/storage.pyc", "google/cloud/storage/api.so", "in-name/__init__.py"),
    ],
)
def test_code_at_the_root_that_no_digest_covers_is_found(tmp_path: Path, name: str) -> None:
    root = small_tree(tmp_path).root
    (root / name).parent.mkdir(exist_ok=True, parents=True)
    (root / name).write_text("")

    assert (name.partition("/")[0],) == unhashed_code(root)


def test_linked_packages_are_found_and_loops_of_links_end(tmp_path: Path) -> None:
    root = small_tree(tmp_path).root
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "module.py").write_text("")
    (root / "orjson").symlink_to(tmp_path / "elsewhere")
    (root / "runs").mkdir()
    (root / "runs" / "again").symlink_to(root / "runs")

    assert ("orjson",) == unhashed_code(root)


def test_a_clean_root_has_no_unhashed_code(tmp_path: Path) -> None:
    root = small_tree(tmp_path).root
    (root / "runs" / "demo").mkdir(parents=True)
    for name in ("README.md", "runs/demo/shard-00000.parquet", ".venv/lib/a.py", "old/__pycache__/a.cpython-311.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    for name in ("venv/pyvenv.cfg", "venv/bin/activate_this.py", "venv/lib/python3.11/site-packages/a.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")

    assert () == unhashed_code(root)


# Bytecode that an import would take in place of the source, and that is not the source


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
