"""What a kill table says of an attested run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from harness.attestation.required import CONTRACT, by_group
from pipeline.gate.kills import NAMED, KillTable


def listed_promises(root: Path) -> list[str]:
    """Return the promises that are to be broken. Raises OSError."""
    if not (root / NAMED).exists():
        return []
    return [str(entry["promise"]) for entry in tomllib.loads((root / NAMED).read_text("utf-8"))["mutant"]]


def held_kills(
    table: KillTable | None, listed: Iterable[str], passed: frozenset[str], groups: frozenset[str]
) -> KillTable | None:
    """Return what the table says of this tree.

    None without a table. Its named share is of the promises listed now: one that was never judged, or whose test is
    gone, is not killed. Tests of a group that was not collected are left aside, and so is a run that does not end.
    """
    if table is None:
        return None
    promises = frozenset(listed)

    def holds(killer: str) -> bool:
        return killer in passed or not killer.startswith(CONTRACT) or not by_group([killer]).keys() <= groups

    killers = {name: killer for name, killer in table.killers.items() if name in promises and holds(killer)}
    named = table.shares["named"]
    named = replace(named, killed=len(killers), of=len(promises) - named.equivalent)
    return replace(table, killers=killers, shares={**table.shares, "named": named})
