"""The interpreter that a job runs in, and its defects.

Looks at how it was started, where its code comes from, and what is installed. Guarantees: nothing is changed or
repaired; each difference from what the contracts ran under is an objection. Cannot see an interpreter or an installed
file that was forged in place.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from pipeline.records import PROVE, Objection

PACKAGES = ("pipeline", "harness")
UNLISTED = frozenset({"pip", "setuptools", "wheel"})
"""Packages that environments come with, which no lock pins."""
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Runtime:
    """The state of an interpreter.

    `distributions` are (name, version), repeated where one is installed twice.
    """

    optimize: int
    isolated: bool
    fresh_bytecode: bool
    pythonpath: str
    search_path: tuple[str, ...]
    modules: Mapping[str, str]
    distributions: tuple[tuple[str, str], ...]


def observe() -> Runtime:
    """Return the state of this interpreter."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    return Runtime(
        optimize=sys.flags.optimize,
        isolated=bool(sys.flags.isolated),
        fresh_bytecode=_fresh_bytecode(),
        pythonpath=os.environ.get("PYTHONPATH", ""),
        search_path=tuple(sys.path),
        modules={name: getattr(module, "__file__", None) or "" for name, module in ours.items()},
        distributions=tuple((found.metadata["Name"], found.version) for found in importlib.metadata.distributions()),
    )


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
