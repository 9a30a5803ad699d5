"""Digests of the tree: what an attestation is about, and what the gate compares with it.

Guarantees: what is hashed is what lies on disk, byte for byte, tracked or not. Refuses symlinks, special files and
names that a dirHash1 line cannot carry; ignores only the cache folders in `IGNORED`.

Bytecode caches that hold other code than their source, which digests of the source cannot see.

Python trusts a `.pyc` whose header names its source's time and size. Both are easily forged, so each cache that an
import would accept is compared, as code, with what its source compiles to.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from types import CodeType

from pipeline.records import Objection

SUBJECTS = (
    *("pipeline/", "harness/", "tests/", "goldens/", "cassettes/"),
    *("noxfile.py", "pyproject.toml", "constraints.txt"),
)
IGNORED = frozenset({"__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"})
FORBIDDEN = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("sitecustomize.py", "usercustomize.py"),
)
"""Files at the root that pytest or Python would read, and that no digest covers."""
IMPORTABLE = tuple(sorted({*all_suffixes(), ".py", ".pyw", ".pyc", ".so", ".pyd"}, key=len, reverse=True))
"""What an import takes, on this platform or another; the longest first, so that a module's name is what is left."""
HASHED = frozenset(name.rstrip("/") for name in SUBJECTS)
ENVIRONMENT = "pyvenv.cfg"
PROGRAMS = frozenset({"bin", "Scripts"})


class DigestError(Exception):
    """The tree cannot be hashed as it lies; the message names the path and what to do."""


def tree_digests(root: Path) -> dict[str, str]:
    """Hex digest of each of `SUBJECTS`: dirHash1 of a folder (its name ends in /), sha256 of a file.

    Raises DigestError where a subject is missing or cannot be hashed.
    """
    return {name: _subject(root, name) for name in SUBJECTS}


def algorithm(subject: str) -> str:
    """The name of the digest in an in-toto DigestSet."""
    return "dirHash1" if subject.endswith("/") else "sha256"


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The subjects whose digests differ, in order of name."""
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def tree_digest(digests: Mapping[str, str]) -> str:
    """One sha256 over all subjects' digests, for people to compare."""
    return hashlib.sha256("".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()).hexdigest()


def dir_hash1(directory: Path) -> str:
    """In-toto's dirHash1 (Go's dirhash.Hash1, in hex): sha256 over the sorted lines `sha256  path` of all files."""
    lines = (f"{file_sha256(directory / name)}  {name}\n" for name in sorted(_files(directory)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Sha256 of a regular file, in hex. Raises DigestError for anything else."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DigestError(f"{path} is no regular file: replace it by one, or remove it")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DigestError(f"{path} cannot be read ({error.strerror}): restore it with git checkout") from error


def unhashed_code(root: Path) -> tuple[str, ...]:
    """Names at the root that Python or pytest would load though no digest covers them, in order."""
    entries = [entry for entry in os.scandir(root) if entry.name not in HASHED]
    named = {entry.name for entry in entries if entry.name in FORBIDDEN or entry.name.endswith(IMPORTABLE)}
    packages = {entry.name for entry in entries if entry.is_dir() and _holds_modules(Path(entry.path))}
    return tuple(sorted(named | packages))


def _holds_modules(folder: Path) -> bool:
    """Whether an import can reach code in a root's folder: as a package, or as a namespace, which needs no __init__."""
    if any(_module(entry.name) == "__init__" for entry in _entries(folder)):
        return True
    return folder.name.isidentifier() and _reaches_module(folder, set())


def _reaches_module(folder: Path, seen: set[str]) -> bool:
    """The same below: a module, or folders with names that an import can spell. Links are followed, once each."""
    if (real := os.path.realpath(folder)) in seen:
        return False
    seen.add(real)
    entries = {entry.name: entry for entry in _entries(folder)}
    if any(_module(name).isidentifier() and not entry.is_dir() for name, entry in entries.items()):
        return True
    # The programs of a virtual environment are scripts, some with a module's suffix; nothing imports them.
    passed = PROGRAMS if ENVIRONMENT in entries else frozenset[str]()
    below = (Path(entry.path) for name, entry in entries.items() if entry.is_dir() and name not in passed)
    return any(path.name.isidentifier() and _reaches_module(path, seen) for path in below)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder; nothing where it cannot be listed, for then an import finds nothing there either."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _module(name: str) -> str:
    """The name by which an import would take this file; empty for what no import takes."""
    return next((name.removesuffix(suffix) for suffix in IMPORTABLE if name.endswith(suffix)), "")


def _subject(root: Path, name: str) -> str:
    path = root / name
    if path.is_symlink():
        raise DigestError(f"{path} is a symbolic link, whose target no digest covers: replace it by what it points to")
    if not name.endswith("/"):
        return file_sha256(path)
    if not path.is_dir():
        raise DigestError(f"{path} is missing: restore it with git checkout, or run from the root of a checkout")
    return dir_hash1(path)


def _files(directory: Path, prefix: str = "") -> Iterator[str]:
    """Paths of all files below, relative and with slashes."""
    try:
        entries = list(os.scandir(directory))
    except OSError as error:
        raise DigestError(f"{directory} cannot be read ({error.strerror}): mend its permissions") from error
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_symlink():
            where = f"{directory / entry.name} is a symbolic link, whose target no digest covers"
            raise DigestError(f"{where}: replace it by what it points to, or remove it")
        if not entry.is_dir(follow_symlinks=False):
            yield _checked(name, directory / entry.name)
        elif entry.name not in IGNORED:
            yield from _files(directory / entry.name, f"{name}/")


def _checked(name: str, path: Path) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DigestError(f"{path!r} has a name that is not UTF-8: rename it") from error
    if "\n" in name or "\\" in name:
        raise DigestError(f"{path!r} has a line break or a backslash in its name: rename it")
    return name


HEADER = 16
"""Bytes before the code: magic number, flags, then time and size, or a hash (PEP 552)."""
CLEAN = "find pipeline harness tests -name __pycache__ -exec rm -r {} +"


def forged_caches(root: Path, packages: tuple[str, ...] = ("pipeline", "harness")) -> Iterator[Objection]:
    """Each cache under these folders that an import would take and whose code is not its source's."""
    for package in packages:
        for cache in sorted((root / package).rglob(f"__pycache__/*.{sys.implementation.cache_tag}.pyc")):
            if _is_forged(cache):
                what = f"{cache.relative_to(root)} holds other code than its source"
                yield Objection(what, f"{CLEAN} && nox -s contract")


def _is_forged(cache: Path) -> bool:
    source = cache.parent.parent / f"{cache.name.partition('.')[0]}.py"
    data = cache.read_bytes()
    if not source.is_file() or not _accepted(data, source):
        return False
    try:
        code = marshal.loads(data[HEADER:])  # noqa: S302 - the import system loads the same bytes; here they do not run
    except (EOFError, ValueError, TypeError):
        return True
    true = compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    return not isinstance(code, CodeType) or code != true


def _accepted(data: bytes, source: Path) -> bool:
    """Whether an import would take the cache in place of its source."""
    if data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    if data[4] & 1:  # hash-based: taken when unchecked, or when the hash is right
        return not data[4] & 2 or data[8:16] == importlib.util.source_hash(source.read_bytes())
    stat = source.stat()
    seconds, size = int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF
    return data[8:16] == seconds.to_bytes(4, "little") + size.to_bytes(4, "little")
