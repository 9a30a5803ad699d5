"""Where the committed weights come from: PROVENANCE.json beside them.

Guarantees: the digest of the recipe covers every source that decides a weight; the files' hashes cover everything in
the directory but PROVENANCE.json itself. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pipeline.records import Json

HERE = Path(__file__).resolve().parent
WEIGHTS = HERE / "weights"
NAME = "PROVENANCE.json"
RECIPE = (
    "../views/resplit", "grammar", "layout", "samples", "tools", "topics", "train", "vocabulary", "words",
)  # fmt: skip
"""The modules that decide the weights. Not the examination, which only measures them."""


def recipe_digest() -> str:
    """Return the sha256 over the recipe's sources.

    Each as `sha256  name`, in order.
    """
    lines = [f"{sha256(HERE / f'{name}.py')}  {name}.py\n" for name in RECIPE]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_hashes(directory: Path) -> dict[str, str]:
    """Return the sha256 of each file by name.

    PROVENANCE.json is left out.
    """
    return {path.name: sha256(path) for path in sorted(directory.iterdir()) if path.name != NAME}


def write_provenance(directory: Path, run: Mapping[str, Json]) -> None:
    """Write PROVENANCE.json.

    What `run` says (seed, steps, loss, …) and what can be read off the tree.
    """
    files: dict[str, Json] = {**file_hashes(directory)}
    libraries: dict[str, Json] = {name: version(name) for name in ("torch", "transformers", "tiktoken")}
    entries = {"commit": commit(), "recipe_sha256": recipe_digest(), **run, "libraries": libraries, "files": files}
    text = json.dumps(entries, ensure_ascii=False, indent=2) + "\n"
    (directory / NAME).write_text(text, encoding="utf-8", newline="\n")


def commit() -> str:
    """Return the commit that the tree stands on.

    With `-dirty` where the recipe's folder differs from it, or `unborn`.
    """
    head = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        return "unborn"
    return f"{head}-dirty" if _git("status", "--porcelain", "--", str(HERE)) else head


def _git(*words: str) -> str:
    """Return git's output.

    Nothing where there is no git or no repository.
    """
    git = shutil.which("git")
    if git is None:
        return ""
    return subprocess.run([git, "-C", str(HERE), *words], capture_output=True, text=True, check=False).stdout.strip()


def sha256(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
