"""Find what a run's prompts use that no contract covers.

Guarantees: the gate is asked about an audit of exactly the rows that are about to be sent. A row that uses more than
the gate allowed is set aside when it is read, whatever the source has become since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.base.files import write_whole
from pipeline.base.json_lines import canonical
from pipeline.base.secret_shapes import secret_of
from pipeline.datasets.adapters.messages import NAME as MESSAGES
from pipeline.datasets.audit import Audit, Auditor, audit_of, defaults_of
from pipeline.datasets.control_text import spelled_by
from pipeline.datasets.features import ROW_BY_ROW, Feature, findings_in
from pipeline.gate.gate import Standing, covered, record_live, way_of
from pipeline.generation.plan import Cover, Plan
from pipeline.records import PROVE, SERVED_APIS, Json, Prompt, Reason, Refusal, Route

CONTRACTS = {
    "emulator": (
        "a case of harness/cassettes/record.py with it, in tests/contract/test_cassettes.py",
        "nox -s cassettes",
    ),
    "local": ("a case of harness/goldens/cases.py with it, in tests/contract/test_goldens.py", "nox -s goldens"),
    **dict.fromkeys(
        sorted(SERVED_APIS),
        ("a case of harness/goldens/cases.py with it, in tests/contract/test_engine_ids.py", "nox -s goldens"),
    ),
}
"""Where a contract on a free route is written, and what records it."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A feature that no contract covers on the route.

    It holds the rows that use it, and what would cover it.
    """

    feature: str
    rows: int
    first: tuple[str, ...]
    shown: str
    contract: str
    run: str
    elsewhere: tuple[str, ...]

    def document(self) -> dict[str, Json]:
        where: dict[str, Json] = {"first": [*self.first], "covered_on": [*self.elsewhere]}
        return {
            "feature": self.feature,
            "rows": self.rows,
            "shown": self.shown,
            "contract": self.contract,
            "run": self.run,
            **where,
        }


def audited(plan: Plan) -> Audit:
    """Audit what the plan is about to send.

    Raises OSError, SourceError, AuditError.
    """
    audit = audit_of(Auditor(plan.dataset or MESSAGES, plan.tool_mode, spelled_by(plan.fmt)), plan.lines())
    if plan.dataset:
        audit.check()
    return audit


def needed(audit: Audit) -> frozenset[str]:
    """Return the features that contracts must cover."""
    return frozenset(str(feature) for feature in audit.features.keys() - ROW_BY_ROW)


def lacks(audit: Audit, plan: Plan, standing: Standing) -> list[Lack]:
    """Return what no contract covers, the most frequent first."""
    contracts = standing.attested.contracts if standing.attested else frozenset()
    short = needed(audit) - covered(plan.route, plan.fmt.name, standing)
    found = [(feature, audit.features[Feature(feature)]) for feature in short]
    return [
        Lack(
            feature,
            rows.rows,
            tuple(str(first["id"]) for first in rows.first),
            str(rows.first[0]["what"]),
            *_mend(feature, plan.route, plan.fmt.name),
            tuple(sorted(name for name, known in contracts if known == feature)),
        )
        for feature, rows in sorted(found, key=lambda pair: (-pair[1].rows, pair[0]))
    ]


def cover_of(audit: Audit, plan: Plan, standing: Standing, *, only_covered: bool) -> Cover:
    """Return what may be sent.

    All that the rows use, or only what contracts cover.
    """
    have, features = covered(plan.route, plan.fmt.name, standing), needed(audit)
    left_out = tuple(sorted(str(each) for each in set(Feature) - ROW_BY_ROW if each not in have))
    return Cover(
        features & have if only_covered else features,
        audit.document(),
        audit.sha256,
        left_out if only_covered else None,
    )


def uncovered(prompt: Prompt, plan: Plan) -> Refusal | None:
    """Refuse a prompt that uses more than is allowed."""
    if plan.cover is None:
        return None
    for found in findings_in(prompt, plan.tool_mode, defaults_of(prompt.dataset, plan.dataset)):
        if str(found.feature) not in plan.cover.features:
            why = f"no contract on {way_of(plan.route, plan.fmt.name)} covers {found.feature}: {found.what}"
            return Refusal(Reason.UNCOVERED, why, field=found.where or "dataset")
    return None


def withheld(prompt: Prompt, plan: Plan) -> Refusal | None:
    """Refuse a prompt that holds a key's shape.

    On routes of our own too, since its row would be trained on and passed on.
    """
    if plan.allow_secret_shapes or (secret := secret_of(prompt)) is None:
        return None
    why = f"it holds what has the shape of a key ({secret[0]}), and was not sent. Take that out, or send all such"
    return Refusal(Reason.SECRET_SHAPE, f"{why} prompts with --allow-secret-shapes and another --out", field=secret[1])


def keep_audit(folder: Path, cover: Cover) -> None:
    """Write the audit beside the manifest.

    Its name holds the digest that the manifest names. Raises OSError.
    """

    def fill(file: BinaryIO) -> None:
        file.write(canonical(cover.audit))

    write_whole(folder / f"audit-{cover.audit_sha256[:12]}.json", fill)


def table(found: Sequence[Lack], audit: Audit, plan: Plan) -> Iterator[str]:
    """Yield the lacks as lines to read."""
    way = f"{way_of(plan.route, plan.fmt.name)}, tools {audit.auditor.tools}"
    yield f"{audit.auditor.dataset} on {way}: {audit.prompts:,} prompts audited"
    yield f"{'rows':>10}  feature"
    for lack in found:
        ids = ", ".join(lack.first) + ", …" * (lack.rows > len(lack.first))
        yield f"{lack.rows:>10,}  {lack.feature} (the first: {lack.shown}): no contract. Rows {ids}"
        yield f"{'':>12}would be covered by {lack.contract}"
        yield f"{'':>12}Run: {lack.run}"
        if lack.elsewhere:
            yield f"{'':>12}covered on {', '.join(lack.elsewhere)}"
    yield "Or send what is covered, and set those rows aside: the same command with --only-covered"


def _mend(feature: str, route: Route, format_name: str) -> tuple[str, str]:
    """Return the contract that would cover a feature.

    The second value is the command to run once it is written.
    """
    marker = f"@pytest.mark.covers({feature!r}, route={way_of(route, format_name)!r})"
    if route.api in CONTRACTS:
        place, record = CONTRACTS[route.api]
        return f"{place}: {marker}", f"{record}, then {PROVE}"
    folder = f"tests/contract/live/{route.name.replace('/', '--')}/"
    return f"a probe with it in goldens/probes.jsonl, recorded live, in {folder}: {marker}", record_live(route)
