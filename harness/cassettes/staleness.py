"""Whether a recording still speaks for this tree.

Guarantees: emulator cassettes and goldens are stale by digest, live cassettes by age. Age never touches what was
recorded here, so that an old clone still passes its suite. Each finding names the command that mends it. Needs no
torch.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from harness.cassettes.cassette import RECORD, Cassette, read_cassette
from pipeline.gate.digests import DigestError, file_sha256
from pipeline.gate.gate import LIVE_CASSETTE_AGE

EMULATOR_SOURCES = (
    "harness/emulator/*.py",
    "harness/views/view.py",
    "harness/views/openrouter.py",
    "harness/views/resplit.py",
)
"""What decides how the emulator answers, beside its weights and the installed packages."""

WEIGHTS = "harness/tiny_target/weights/model.safetensors"
TOKENIZER = "harness/tiny_target/weights/tiktoken.model"
LOCK = "constraints.txt"
CLIENTS = ("openai", "httpx2", "vcrpy")


def emulator_digests(root: Path) -> dict[str, str]:
    """Return what an emulator cassette depends on.

    Sources, weights, tokenizer, lock; each a sha256 in hex. Raises DigestError.
    """
    sources = sorted({path for pattern in EMULATOR_SOURCES for path in _matched(root, pattern)})
    lines = "".join(f"{file_sha256(path)}  {path.relative_to(root).as_posix()}\n" for path in sources)
    files = {"weights": WEIGHTS, "tokenizer": TOKENIZER, "lock": LOCK}
    hashed = {name: file_sha256(root / path) for name, path in files.items()}
    return {"emulator": hashlib.sha256(lines.encode()).hexdigest(), **hashed}


def _matched(root: Path, pattern: str) -> list[Path]:
    """Return the files of `pattern`.

    Raises DigestError for none: a moved source would silently leave the digest.
    """
    paths = list(root.glob(pattern))
    if not paths:
        raise DigestError(
            f"{pattern} matches no file below {root}. Name the moved files in harness/cassettes/staleness.py"
        )
    return paths


def versions(root: Path) -> dict[str, str]:
    """Return the versions of this project and its clients."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return {project["name"]: project["version"], **{name: version(name) for name in CLIENTS}}


def cassette_paths(root: Path) -> list[Path]:
    """Return every file of the library, whatever its name."""
    return sorted(path for path in (root / "cassettes").rglob("*") if path.is_file())


def stale_emulator(cassette: Cassette, now: Mapping[str, str]) -> str | None:
    """Say why an emulator cassette no longer fits this tree.

    None where it does, and for live ones.
    """
    if cassette.provenance.source != "emulator":
        return None
    changed = [name for name, digest in now.items() if cassette.provenance.digests.get(name) != digest]
    return f"recorded before a change of: {', '.join(changed)}. Run: {RECORD}" if changed else None


def stale_live(root: Path, now: datetime) -> dict[str, str]:
    """Return routes and models whose oldest cassette is too old.

    Each with the reason. `now` must carry a time zone.
    """
    found: dict[str, str] = {}
    for route, recorded in oldest_live(root).items():
        if now - recorded > LIVE_CASSETTE_AGE:
            age = f"{(now - recorded).days} days old, limit {LIVE_CASSETTE_AGE.days}"
            found[route] = f"{route}: the oldest live cassette is {age}, so the gate is shut for it"
    return found


def oldest_live(root: Path) -> dict[str, datetime]:
    """Return the oldest recording of each live route and model."""
    oldest: dict[str, datetime] = {}
    for path in cassette_paths(root):
        provenance = read_cassette(path).provenance
        if provenance.source == "live":
            route = f"{provenance.route} {provenance.model}"
            oldest[route] = min(provenance.recorded, oldest.get(route, provenance.recorded))
    return oldest


def pins(root: Path) -> dict[str, str]:
    """Return the exact versions in the lock, by name."""
    lines = (root / LOCK).read_text("utf-8").splitlines()
    return dict(found.groups() for line in lines if (found := re.fullmatch(r"([\w.-]+)==([\w.!-]+)", line)))  # type: ignore[misc]  # two groups


def other_pins(recorded: Mapping[str, str], root: Path) -> Iterator[str]:
    """Yield packages recorded at another version than the lock's.

    A local part (`+cpu`) does not count.
    """
    locked = pins(root)
    for name, found in recorded.items():
        if name in locked and locked[name] != found.partition("+")[0]:
            yield f"{name} {found} (locked: {locked[name]})"
