"""Bytecode caches that hold other code than their source, which digests of the source cannot see.

Python trusts a `.pyc` whose header names its source's time and size. Both are easily forged, so each cache that an
import would accept is compared, as code, with what its source compiles to.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from pipeline.objections import Objection

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
