"""Digests of the tree, and code that no digest covers.

Guarantees: what is hashed is what is on disk, byte for byte, tracked or not. Refuses symbolic links, special files and
names that a dirHash1 line cannot carry; ignores only the cache folders in `IGNORED`.

Two things escape digests of the sources: code at the root, outside every subject (`unhashed_code`), and bytecode that
differs from its source (`forged_caches`). Python trusts a `.pyc` whose header names its source's time and size, which
are easily forged. So each cache that an import would accept is compared, as code, with what its source compiles to.
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
"""Files at the root that pytest or Python would read though no digest covers them."""
IMPORTABLE = tuple(sorted({*all_suffixes(), ".py", ".pyw", ".pyc", ".so", ".pyd"}, key=len, reverse=True))
"""Suffixes of modules, on this platform or another; the longest first, so that a module's name is what is left."""
HASHED = frozenset(name.rstrip("/") for name in SUBJECTS)
ENVIRONMENT = "pyvenv.cfg"
PROGRAMS = frozenset({"bin", "Scripts"})
HEADER = 16
"""Bytes of a cache before its code: magic number, flags, then time and size, or a hash (PEP 552)."""
CLEAN = "find pipeline harness tests -name __pycache__ -exec rm -r {} +"


class DigestError(Exception):
    """The tree cannot be hashed; the message says why."""


def tree_digests(root: Path) -> dict[str, str]:
    """Return the hex digest of each of `SUBJECTS`.

    A folder, whose name ends in /, has dirHash1, a file sha256. Raises DigestError where a subject is missing or cannot
    be hashed.
    """
    digests: dict[str, str] = {}
    for name in SUBJECTS:
        path = root / name
        if path.is_symlink():
            what = f"{path} is a symbolic link, whose target no digest covers"
            raise DigestError(f"{what}: replace it by what it points to")
        if name.endswith("/") and not path.is_dir():
            raise DigestError(f"{path} is missing: restore it with git checkout, or run from the root of a checkout")
        digests[name] = dir_hash1(path) if name.endswith("/") else file_sha256(path)
    return digests


def algorithm(subject: str) -> str:
    """Return a digest's name in an in-toto DigestSet."""
    return "dirHash1" if subject.endswith("/") else "sha256"


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the subjects whose digests differ, by name."""
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def tree_digest(digests: Mapping[str, str]) -> str:
    """Return one sha256 over all digests, for people to compare."""
    return hashlib.sha256("".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()).hexdigest()


def dir_hash1(directory: Path) -> str:
    """Return in-toto's dirHash1 of a folder, in hex.

    It is Go's dirhash.Hash1: the sha256 over the sorted lines `sha256  path` of all files. Raises DigestError.
    """
    lines = (f"{file_sha256(directory / name)}  {name}\n" for name in sorted(_files(directory)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _files(directory: Path, prefix: str = "") -> Iterator[str]:
    """Yield the relative paths of all files below, with slashes."""
    try:
        entries = list(os.scandir(directory))
    except OSError as error:
        raise DigestError(f"{directory} cannot be read ({error.strerror}): mend its permissions") from error
    for entry in entries:
        name, path = f"{prefix}{entry.name}", directory / entry.name
        if entry.is_symlink():
            where = f"{path} is a symbolic link, whose target no digest covers"
            raise DigestError(f"{where}: replace it by what it points to, or remove it")
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in IGNORED:
                yield from _files(path, f"{name}/")
            continue
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DigestError(f"{path!r} has a name that is not UTF-8: rename it") from error
        if "\n" in name or "\\" in name:
            raise DigestError(f"{path!r} has a line break or a backslash in its name: rename it")
        yield name


def file_sha256(path: Path) -> str:
    """Return the sha256 of a regular file, in hex.

    Raises DigestError for anything else.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DigestError(f"{path} is no regular file: replace it by one, or remove it")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DigestError(f"{path} cannot be read ({error.strerror}): restore it with git checkout") from error


def unhashed_code(root: Path) -> tuple[str, ...]:
    """Return names at the root that no digest covers, sorted.

    Those that Python or pytest would load.
    """
    entries = [entry for entry in os.scandir(root) if entry.name not in HASHED]
    named = {entry.name for entry in entries if entry.name in FORBIDDEN or entry.name.endswith(IMPORTABLE)}
    packages = {entry.name for entry in entries if entry.is_dir() and _holds_modules(Path(entry.path))}
    return tuple(sorted(named | packages))


def _holds_modules(folder: Path) -> bool:
    """Whether an import can reach code in this folder.

    As a package, or as a namespace, which needs no __init__.
    """
    if any(_module(entry.name) == "__init__" for entry in _entries(folder)):
        return True
    return folder.name.isidentifier() and _reaches_module(folder, set())


def _reaches_module(folder: Path, visited: set[str]) -> bool:
    """Whether an import can reach a module in or below.

    Through names that an import can spell. Links are followed, once each.
    """
    if (real := os.path.realpath(folder)) in visited:
        return False
    visited.add(real)
    entries = {entry.name: entry for entry in _entries(folder)}
    if any(_module(name).isidentifier() and not entry.is_dir() for name, entry in entries.items()):
        return True
    # The programs of a virtual environment are scripts, some with a module's suffix; nothing imports them.
    skipped = PROGRAMS if ENVIRONMENT in entries else frozenset[str]()
    below = (Path(entry.path) for name, entry in entries.items() if entry.is_dir() and name not in skipped)
    return any(path.name.isidentifier() and _reaches_module(path, visited) for path in below)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return a folder's entries; none where it cannot be listed.

    Then an import finds nothing there either.
    """
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _module(name: str) -> str:
    """Return a file's name as a module, or nothing."""
    return next((name.removesuffix(suffix) for suffix in IMPORTABLE if name.endswith(suffix)), "")


def forged_caches(root: Path, packages: tuple[str, ...] = ("pipeline", "harness")) -> Iterator[Objection]:
    """Yield an objection for each forged bytecode cache.

    Looks at the caches under these packages that an import would take.
    """
    for package in packages:
        for cache in sorted((root / package).rglob(f"__pycache__/*.{sys.implementation.cache_tag}.pyc")):
            if _is_forged(cache):
                what = f"{cache.relative_to(root)} holds other code than its source"
                yield Objection(what, f"{CLEAN} && nox -s contract")


def _is_forged(cache: Path) -> bool:
    """Whether an import would take other code than the source."""
    source = cache.parent.parent / f"{cache.name.partition('.')[0]}.py"
    data = cache.read_bytes()
    if not source.is_file() or not _is_taken(data, source):
        return False
    try:
        code = marshal.loads(data[HEADER:])  # noqa: S302 - the import system loads the same bytes; here they do not run
    except (EOFError, ValueError, TypeError):
        return True
    genuine = compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    return not isinstance(code, CodeType) or code != genuine


def _is_taken(data: bytes, source: Path) -> bool:
    """Whether an import would take the cache for its source."""
    if data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    if data[4] & 1:  # hash-based: taken when unchecked, or when the hash is right
        return not data[4] & 2 or data[8:16] == importlib.util.source_hash(source.read_bytes())
    stat = source.stat()
    seconds, size = int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF
    return data[8:16] == seconds.to_bytes(4, "little") + size.to_bytes(4, "little")
