"""The kill table: which broken promises the contract suite notices.

Guarantees: a table is read whole or not at all, and its sums are those of its lines. It holds the digests of the files
that were broken, so a tree is compared with it; a file that it never saw counts as changed. `python -m harness teeth
--write` measures and writes it beside REQUIRED, so an attestation is about it too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from pipeline.gate.digests import file_sha256
from pipeline.records import Json

KILLS: Final = "tests/contract/KILLS"
NAMED: Final = "harness/measures/teeth/named.toml"
"""The list of named mutants: a promise and how to break it."""
TEETH: Final = "nox -s teeth -- --write"
ENOUGH: Final[Mapping[str, float]] = {"named": 0.95, "drawn": 0.90}
"""The least shares that are killed."""
LEAST: Final[Mapping[str, int]] = {"named": 120, "drawn": 200}
"""The fewest that are judged."""
MOST_EQUIVALENT: Final = 0.03
MUTATED: Final = (
    *("pipeline/proof", "pipeline/formats", "pipeline/fingerprints", "pipeline/gate", "pipeline/shards"),
    *("pipeline/generation/ledger.py", "pipeline/generation/ledger_mark.py", "pipeline/generation/ledger_schema.py"),
    *("pipeline/generation/ledger_writer.py", "pipeline/generation/budget.py", "pipeline/generation/day_spend.py"),
    *("pipeline/generation/paid_client.py", "pipeline/generation/billing.py", "pipeline/generation/breaker.py"),
    *("pipeline/generation/reconcile.py", "pipeline/generation/coverage.py", "pipeline/generation/preflight.py"),
    *("pipeline/datasets/audit.py", "pipeline/datasets/features.py", "pipeline/datasets/tool_signs.py"),
    *("pipeline/drafter/model", "pipeline/drafter/training/packing.py", "pipeline/drafter/rows.py"),
    *("pipeline/drafter/decoding/verify.py", "pipeline/drafter/export/config.py", "pipeline/drafter/export/weights.py"),
    *("pipeline/base/redaction.py", "pipeline/base/screen.py", "pipeline/base/signing.py"),
)
"""Files and folders that a dollar or a GPU hour rests on: these are broken."""


class KillTableError(ValueError):
    """A kill table that is not whole."""


@dataclass(frozen=True, slots=True)
class Share:
    """Killed and judged mutants; the equivalent ones are in neither."""

    killed: int
    of: int
    equivalent: int

    def document(self) -> dict[str, int]:
        return {"killed": self.killed, "of": self.of, "equivalent": self.equivalent}


@dataclass(frozen=True, slots=True)
class KillTable:
    """What was broken, when, and what noticed it.

    `files` has the sha256 of each file that was broken. `killers` has the test that noticed, by promise, for the killed
    named ones.
    """

    sha256: str
    measured: date
    shares: Mapping[str, Share]
    files: Mapping[str, str]
    killers: Mapping[str, str]

    def document(self) -> dict[str, Json]:
        """Return it as JSON, for a statement."""
        return {
            "sha256": self.sha256,
            "measured": self.measured.isoformat(),
            "shares": {sort: dict[str, Json](share.document()) for sort, share in self.shares.items()},
            "files": dict[str, Json](self.files),
            "killers": dict[str, Json](self.killers),
        }


def attested_kills(document: Mapping[str, Any]) -> KillTable:
    """Return the table of a statement.

    Raises ValueError, KeyError or TypeError for what is none.
    """
    return KillTable(
        str(document["sha256"]),
        date.fromisoformat(document["measured"]),
        {sort: Share(**document["shares"][sort]) for sort in ENOUGH},
        dict(document["files"]),
        dict(document["killers"]),
    )


def read_kills(root: Path) -> KillTable | None:
    """Return the committed table; None where there is none.

    Raises KillTableError, OSError.
    """
    path = root / KILLS
    if not path.exists():
        return None
    raw = path.read_bytes()
    try:
        head, *lines = map(json.loads, raw.decode().splitlines())
        shares = {sort: Share(**head[sort]) for sort in ENOUGH}
        killers = {line["promise"]: line["killer"] for line in lines if line.get("killer")}
        table = KillTable(
            hashlib.sha256(raw).hexdigest(), date.fromisoformat(head["measured"]), shares, head["files"], killers
        )
        problems = list(_contradictions(table, lines))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        raise KillTableError(f"{KILLS} is no whole kill table ({problems[0]}). Run: {TEETH}")
    return table


def _contradictions(table: KillTable, lines: list[dict[str, Any]]) -> Iterator[str]:
    promises = [line["promise"] for line in lines if "promise" in line]
    alike = [line for line in lines if "survivor" in line and "equivalent" in line]
    survivors = [line for line in lines if "survivor" in line and "equivalent" not in line]
    named, drawn = table.shares["named"], table.shares["drawn"]
    if len(set(promises)) != len(promises):
        yield "a promise stands twice"
    if (len(table.killers), len(promises)) != (named.killed, named.of + named.equivalent):
        yield f"{len(table.killers)} of {len(promises)} promises are killed, its head says {named.killed} of {named.of}"
    if (len(survivors), len(alike)) != (drawn.of - drawn.killed, drawn.equivalent):
        yield f"{len(survivors)} drawn mutants survived, its head says {drawn.killed} of {drawn.of} killed"


def weaknesses(shares: Mapping[str, Share]) -> Iterator[str]:
    """Yield where fewer are judged or killed than is enough."""
    for sort, least in ENOUGH.items():
        killed, of, equivalent = (getattr(shares[sort], name) for name in ("killed", "of", "equivalent"))
        if of < LEAST[sort]:
            yield f"{of} {sort} faults were tried, at least {LEAST[sort]} are needed"
        elif killed < least * of:
            yield f"the contract suite noticed {killed} of {of} {sort} faults, at least {least:.0%} are needed"
        if equivalent > MOST_EQUIVALENT * (of + equivalent):
            yield f"{equivalent} of {of + equivalent} {sort} faults are declared to change nothing"


def mutated_files(root: Path) -> dict[str, str]:
    """Return the sha256 of each file to be broken."""
    places = [root / name for name in MUTATED]
    files = sorted(file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place]))
    return {file.relative_to(root).as_posix(): file_sha256(file) for file in files if file.is_file()}


def changed_files(table: KillTable, root: Path) -> tuple[str, ...]:
    """Return files that are not those that the table broke."""
    found = mutated_files(root)
    return tuple(sorted(name for name in table.files.keys() | found.keys() if table.files.get(name) != found.get(name)))
