"""The kill table, and a page of promises.

The table lies beside REQUIRED, one JSON object a line. Its first line has the sums and the digest of each
mutated file; a line follows for each named mutant and for each drawn one that survived.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from harness.measures.teeth.mutants import Mutant
from pipeline.base.paths import ROOT
from pipeline.gate.kills import KILLS, Share

PAGE: Final = Path("docs", "promises.md")
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
HEAD: Final = """# Promises

Written by `python -m harness teeth --write`. Each promise was broken in one line, and the contract suite was run on
that tree: the test beside it is the first that failed.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A mutant's fate: the test that killed it, or None."""

    mutant: Mutant
    killer: str | None

    @property
    def package(self) -> str:
        return "/".join(self.mutant.file.split("/")[:2])


def equivalents() -> Mapping[str, str]:
    """Return declared equivalent mutants and why they are."""
    entries = tomllib.loads(EQUIVALENT.read_text("utf-8")).get("mutant", [])
    return {str(entry["name"]): str(entry["why"]) for entry in entries}


def sums(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, int]]:
    """Return killed and judged mutants by package, equivalents aside."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    same = equivalents()
    for one in outcomes:
        if one.mutant.name not in same:
            found[one.package][0] += one.killer is not None
            found[one.package][1] += 1
    return {package: (killed, judged) for package, (killed, judged) in sorted(found.items())}


def write(named: Sequence[Outcome], drawn: Sequence[Outcome], files: Mapping[str, str], root: Path = ROOT) -> None:
    """Write the kill table and the page of promises.

    `files` has the digests of the files that were broken.
    """
    same = equivalents()
    sums = {"named": share(named).document(), "drawn": share(drawn).document()}
    head = {"measured": datetime.now(UTC).date().isoformat(), **sums, "files": files}
    lines: list[Mapping[str, Any]] = [head]
    lines += [{"promise": one.mutant.promise, "file": one.mutant.file, "killer": one.killer} for one in named]
    for one in drawn:
        if one.killer is None:
            name, line = one.mutant.name, one.mutant.line
            lines.append({"survivor": name, "line": line, **({"equivalent": same[name]} if name in same else {})})
    (root / KILLS).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    (root / PAGE).write_text(page(named), "utf-8")


def page(named: Sequence[Outcome]) -> str:
    """Return the page of promises, by package."""
    parts = [HEAD]
    for package in sorted({one.package for one in named}):
        parts.append(f"\n## {package}\n\n| promise | held by |\n|---|---|\n")
        for one in (each for each in named if each.package == package):
            held = f"`{one.killer.removeprefix('tests/contract/')}`" if one.killer else "nothing"
            parts.append(f"| {one.mutant.promise} | {held.replace('|', chr(92) + '|')} |\n")
    return "".join(parts)


def share(outcomes: Sequence[Outcome]) -> Share:
    """Return how many were killed and judged, equivalents apart."""
    same = equivalents()
    judged = [one for one in outcomes if one.mutant.name not in same]
    killed = sum(one.killer is not None for one in judged)
    return Share(killed, len(judged), len(outcomes) - len(judged))
