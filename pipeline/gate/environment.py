"""The interpreter that a job runs in, and its defects.

Looks at how it was started, where its code comes from, and what is installed. Guarantees: nothing is changed or
repaired; each difference from what the contracts ran under is an objection. Cannot see an interpreter or an installed
file that was forged in place.
"""

from __future__ import annotations

import base64
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

from pipeline.gate.digests import file_sha256
from pipeline.records import PROVE, Objection

PACKAGES = ("pipeline", "harness")
UNLISTED = frozenset({"pip", "setuptools", "wheel"})
"""Packages that environments come with, which no lock pins."""
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Runtime:
    """The state of an interpreter.

    `distributions` are (name, version), repeated where one is installed twice. `python` says what interpreter it is and
    where. `direct` has the packages that came from a folder or an address, with pip's note. `startup` has the digests
    of files that Python runs by itself as it starts, by name.
    """

    optimize: int
    isolated: bool
    fresh_bytecode: bool
    pythonpath: str
    search_path: tuple[str, ...]
    modules: Mapping[str, str]
    distributions: tuple[tuple[str, str], ...]
    python: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)
    startup: Mapping[str, str] = field(default_factory=dict)


def observe() -> Runtime:
    """Return the state of this interpreter."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    installed = list(importlib.metadata.distributions())
    return Runtime(
        optimize=sys.flags.optimize,
        isolated=bool(sys.flags.isolated),
        fresh_bytecode=_fresh_bytecode(),
        pythonpath=os.environ.get("PYTHONPATH", ""),
        search_path=tuple(sys.path),
        modules={name: getattr(module, "__file__", None) or "" for name, module in ours.items()},
        distributions=tuple((found.metadata["Name"], found.version) for found in installed),
        python={
            "implementation": platform.python_implementation(),
            "version": platform.python_version(),
            "system": platform.system(),
            "machine": platform.machine(),
        },
        direct={found.metadata["Name"]: text for found in installed if (text := found.read_text("direct_url.json"))},
        startup={path.name: file_sha256(path) for path in _startup_files()},
    )


def _startup_files() -> Iterator[Path]:
    """Yield what `site` runs: path files, sitecustomize, usercustomize."""
    folders = [Path(entry) for entry in sys.path if entry]
    for folder in folders:
        yield from sorted(folder.glob("*.pth")) if folder.name in ("site-packages", "dist-packages") else ()
    for name in ("sitecustomize", "usercustomize"):
        if (found := PathFinder.find_spec(name)) is not None and found.origin:
            yield Path(found.origin)


def _fresh_bytecode() -> bool:
    """Whether every module is compiled from its source.

    Then no cache is written, and the one that is read from is empty.
    """
    prefix = sys.pycache_prefix
    if prefix is None or not sys.flags.dont_write_bytecode:
        return False
    return not Path(prefix).exists() or not any(Path(prefix).iterdir())


def start_objections(runtime: Runtime) -> Iterator[Objection]:
    """Flags and variables that change what code does."""
    if runtime.optimize:
        what = "python runs with -O or PYTHONOPTIMIZE, which takes checks out of the code"
        yield Objection(what, "env -u PYTHONOPTIMIZE python -m pipeline gate status")
    if runtime.pythonpath:
        what = f"PYTHONPATH is {runtime.pythonpath!r}: what lies there can stand before the code that was proven"
        yield Objection(what, "unset PYTHONPATH")


def isolation_objections(runtime: Runtime) -> Iterator[Objection]:
    """A process that `python -m pipeline` did not start."""
    if not (runtime.isolated and runtime.fresh_bytecode):
        what = "this process was not started isolated (-I -B, with an empty bytecode cache)"
        yield Objection(what, "python -m pipeline gate status")


def location_objections(runtime: Runtime, root: Path) -> Iterator[Objection]:
    """Our code from outside the root, or a second copy."""
    for name, file in sorted(runtime.modules.items()):
        if not Path(file or "/").resolve().is_relative_to(root.resolve()):
            what = f"{name} was loaded from {file or 'no file'}, not from {root}"
            yield Objection(what, f"cd {root} && python -m pipeline gate status")
    for entry in dict.fromkeys(str(Path(entry or ".").resolve()) for entry in runtime.search_path):
        if Path(entry) != root.resolve():
            copies = [package for package in PACKAGES if PathFinder.find_spec(package, [entry])]
            for package in copies:
                what = f"a second copy of {package} lies in {entry}"
                yield Objection(what, f"rm -r {Path(entry) / package} (or: pip uninstall drafter-gate)")


def lock_objections(runtime: Runtime, root: Path) -> Iterator[Objection]:
    """Packages that constraints.txt pins differently, or not at all."""
    pins = read_pins((root / "constraints.txt").read_text("utf-8"))
    wrong, unlisted = [], []
    for name, version in sorted(runtime.distributions):
        allowed = pins.get(canonical_name(name))
        if allowed is None and canonical_name(name) not in UNLISTED:
            unlisted.append(f"{name} {version}")
        elif allowed is not None and not allowed & {version, version.partition("+")[0]}:
            wrong.append(f"{name} {version} (pinned: {', '.join(sorted(allowed))})")
    if wrong:
        mend = f"pip install -c constraints.txt {' '.join(text.split()[0] for text in wrong)}, then {PROVE}"
        yield Objection(f"installed packages differ from constraints.txt: {', '.join(wrong)}", mend)
    if unlisted:
        rest = f" and {len(unlisted) - MOST_NAMED} more" if len(unlisted) > MOST_NAMED else ""
        what = f"constraints.txt does not list what is installed: {', '.join(unlisted[:MOST_NAMED])}{rest}"
        names = " ".join(text.split()[0] for text in unlisted)
        many = f"{PROVE} generate, each in an environment of its own"
        yield Objection(what, f"pip uninstall {names}" if len(unlisted) <= MOST_NAMED else many)


def start_differences(
    runtime: Runtime, python: Mapping[str, str], direct: Mapping[str, str], startup: Mapping[str, str]
) -> Iterator[Objection]:
    """Yield what an attestation says otherwise of the interpreter.

    A file that runs at the start may also be one that a package of the lock lists as its own, with this digest.
    """
    for name, value in runtime.python.items():
        if (attested := python.get(name)) != value:
            yield Objection(f"the suite ran on the {name} {attested}, and this is {value}", PROVE)
    for name, text in runtime.direct.items():
        if direct.get(name) != text:
            what = (
                f"{name} is installed from a folder or an address, not from the index, and the suite ran without it so"
            )
            yield Objection(what, f"pip install --force-reinstall -c constraints.txt {name}, then {PROVE}")
    for name, sha256 in runtime.startup.items():
        if startup.get(name) != sha256 and not _is_listed(name, sha256):
            what = f"{name} runs as Python starts, and the suite ran without it or with another"
            yield Objection(what, f"remove it, or review it and run: {PROVE}")


def _is_listed(name: str, sha256: str) -> bool:
    """Whether an installed package lists a file as its own."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    records = (found.read_text("RECORD") or "" for found in importlib.metadata.distributions())
    return any(f"{name},sha256={digest}," in record for record in records)


def read_pins(text: str) -> dict[str, frozenset[str]]:
    """Return the pinned versions by canonical name.

    Reads lines `name==version`; markers and extras are ignored.
    """
    pins: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        requirement = line.partition("#")[0].partition(";")[0].strip()
        name, equals, version = requirement.partition("==")
        if equals:
            key = canonical_name(name.partition("[")[0])
            pins[key] = pins.get(key, frozenset()) | {version.split()[0]}
    return pins


def canonical_name(name: str) -> str:
    """Return a package's canonical name (PEP 503).

    >>> canonical_name("Py_YAML.x")
    'py-yaml-x'
    """
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
