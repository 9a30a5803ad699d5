"""Which golden sets of engines are recorded: of which engine, version and device, and which are absent or stale.

Guarantees: only the first line of a set is read; one that was recorded by another version than is pinned is stale.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pipeline.records import Json

FOLDER: Final = Path("goldens") / "engines"
KNOWN: Final[Mapping[str, str]] = {
    "sglang-cpu": "nox -s goldens -- --engine sglang",
    "sglang-cuda": "nox -s goldens -- --engine sglang --device cuda",
    "transformers-cpu": "nox -s goldens -- --engine local",
    "vllm-cpu": "nox -s goldens -- --engine vllm",
    "vllm-cuda": "nox -s goldens -- --engine vllm --device cuda",
}
"""The sets that there can be, and the command that records each."""
WANTED: Final = ("sglang-cpu", "sglang-cuda", "transformers-cpu", "vllm-cpu")
"""Those that are told as absent."""
PACKAGES: Final[Mapping[str, str]] = {"sglang": "sglang", "vllm": "vllm(?:-cpu)?", "transformers": "transformers"}


def standing(root: Path) -> list[dict[str, Json]]:
    """Each set that is recorded or wanted: its name and version, why it is stale, and the command that mends it."""
    return list(_standing(root))


def _standing(root: Path) -> Iterator[dict[str, Json]]:
    for name, mend in KNOWN.items():
        path = root / FOLDER / f"{name}.jsonl"
        if not path.is_file():
            if name in WANTED:
                yield {"name": name, "version": None, "what": "absent", "mend": mend}
            continue
        key = key_of(path)
        why = stale(root, key)
        yield {"name": name, "version": str(key.get("version")), "what": why or "recorded", "mend": mend if why else ""}


def key_of(path: Path) -> Mapping[str, Json]:
    """What decided a set's ids; empty where its first line says nothing of it."""
    try:
        with path.open(encoding="utf-8") as file:
            key = json.loads(file.readline())["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return key if isinstance(key, dict) else {}


def stale(root: Path, key: Mapping[str, Json]) -> str:
    """Why a set of this key is stale; empty where it is of the pinned version."""
    engine, version = str(key.get("engine")), str(key.get("version"))
    pinned = _pinned(root, engine)
    return "" if version in pinned else f"stale: of {engine} {version}, pinned is {' or '.join(pinned) or 'none'}"


def _pinned(root: Path, engine: str) -> list[str]:
    """The versions that pyproject.toml and constraints.txt pin of an engine's package."""
    pattern = re.compile(rf"{PACKAGES.get(engine, 'no-such-package')}==([\w.]+)")
    try:
        groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("dependency-groups", {})
        lines = [*(root / "constraints.txt").read_text("utf-8").splitlines(), *map(str, groups.get(engine, ()))]
    except (OSError, ValueError):
        return []
    return sorted({found[1] for line in lines if (found := pattern.fullmatch(line.strip()))})
