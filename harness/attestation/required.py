"""REQUIRED: the contract tests that must have passed, by group, in `tests/contract/REQUIRED`.

The file is compared in both directions, so that a test that is removed, renamed or added is a diff that someone
reviews. `python -m harness required` says what differs; with `--write` it writes the file anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from harness.attestation.groups import BASE, CONTRACT, absent_groups, by_group, group_of
from pipeline.base.paths import ROOT
from pipeline.objections import PROVE, Objection

REQUIRED = f"{CONTRACT}/REQUIRED"
WRITE = "python -m harness required --write"
HEADER = f"# The contract tests that an attestation needs, by group. Written by: {WRITE}\n"

Required = Mapping[str, frozenset[str]]


class RequiredError(Exception):
    """REQUIRED is missing or cannot be read as what it should be."""


def read_required(path: Path) -> Required:
    """Node ids by group. Raises RequiredError, naming the line."""
    groups: dict[str, frozenset[str]] = {}
    group = None
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
            groups.setdefault(group, frozenset())
        elif group is None or group_of(line) != group or line in groups[group]:
            raise RequiredError(f"{path}, line {number}: {line!r} is listed twice or in the wrong group")
        else:
            groups[group] |= {line}
    return groups


def format_required(groups: Required) -> str:
    """The file's text: `base` first, then the other groups by name, ids sorted."""
    order = sorted((group for group in groups if groups[group]), key=lambda group: (group != BASE, group))
    return HEADER + "".join(f"\n[{group}]\n" + "".join(f"{i}\n" for i in sorted(groups[group])) for group in order)


def differences(required: Required, passed: Iterable[str], accounted: Iterable[str] = ()) -> Iterator[Objection]:
    """What REQUIRED and the tests that passed do not have in common; groups that are absent here are left aside.

    `accounted` are tests that did not pass and of which another objection speaks.
    """
    ids = frozenset(passed)
    wanted = frozenset().union(*(members for group, members in required.items() if group not in absent_groups()))
    if lacking := sorted(wanted - ids - frozenset(accounted)):
        what = f"tests of REQUIRED did not pass ({len(lacking)}): {few(lacking)}"
        yield Objection(what, f"{PROVE} without selecting tests, or {WRITE} if they are gone on purpose")
    if extra := sorted(ids - wanted):
        yield Objection(
            f"tests passed that REQUIRED does not list ({len(extra)}): {few(extra)}", f"{WRITE}, then {PROVE}"
        )


def few(names: list[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def main(arguments: list[str] | None = None) -> int:
    """Compare or write. Exit 0 when REQUIRED says what is collected, 1 when it does not, 2 when nothing collects."""
    parser = argparse.ArgumentParser(prog="python -m harness required", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file anew")
    options = parser.parse_args(arguments)
    collected = _collected()
    if not collected:
        sys.stderr.write(f"nothing was collected in {CONTRACT}. Run: python -m pytest {CONTRACT} --collect-only\n")
        return 2
    path = ROOT / REQUIRED
    old = read_required(path) if path.exists() else {}
    kept = {group: members for group, members in old.items() if group in absent_groups()}
    new = {**kept, **by_group(collected)}
    _print_difference(old, new)
    if options.write:
        path.write_text(format_required(new), "utf-8")
        return 0
    return int(_all(old) != _all(new))


class _Collector:
    """Keeps the node ids of a collection that had no errors."""

    def __init__(self) -> None:
        self.ids: tuple[str, ...] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not session.testsfailed:
            self.ids = tuple(item.nodeid for item in session.items)


def _collected() -> tuple[str, ...]:
    collector = _Collector()
    arguments = ["--collect-only", "-qq", "--no-summary", f"--rootdir={ROOT}", str(ROOT / CONTRACT)]
    status = pytest.main(["-p", "harness.attestation.plugin", *arguments], plugins=[collector])
    return collector.ids if status == pytest.ExitCode.OK else ()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequiredError(f"{path} cannot be read ({error}): {WRITE}") from error


def _all(groups: Required) -> frozenset[str]:
    return frozenset().union(*groups.values())


def _print_difference(old: Required, new: Required) -> None:
    for mark, ids in (("-", _all(old) - _all(new)), ("+", _all(new) - _all(old))):
        for nodeid in sorted(ids):
            sys.stdout.write(f"{mark} {nodeid}\n")
    groups = ", ".join(f"{group} {len(members)}" for group, members in new.items())
    sys.stdout.write(f"{REQUIRED}: {groups}\n")
