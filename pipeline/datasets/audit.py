"""Count which features a whole source uses.

Guarantees: each row is counted as a prompt or a rejected row, and the first rows of each feature are named as evidence.
Memory does not grow with the rows. The digest is that of the audit's canonical JSON, in which a hash over every row's
own line binds the rows. Raises AuditError for a source that gives no prompt.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

from pipeline.base.disk_sets import DiskSet
from pipeline.base.json_lines import canonical, line_of
from pipeline.base.processes import map_in_order
from pipeline.base.prompts import RefusedLine
from pipeline.datasets.blocks import Block
from pipeline.datasets.control_text import ControlText
from pipeline.datasets.features import Feature, Finding, findings_in, shape_of
from pipeline.datasets.registry import DATASETS, Dataset, gathered, outcomes_of
from pipeline.datasets.rows import Reject, Rejected
from pipeline.datasets.sources import blocks_of
from pipeline.datasets.tool_signs import signs_of
from pipeline.records import Json, Prompt, ToolMode

FIRST = 3
"""Rows of each feature that are named as evidence."""

Findings: TypeAlias = "dict[Feature, tuple[str, str]]"
"""Each feature of a row, with the first thing that shows it, and where."""


class AuditError(Exception):
    """A source gives no prompt to audit."""


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """What one row uses, or why it was rejected."""

    id: str | None
    found: Findings = field(default_factory=dict)
    rejected: str = ""

    def line(self) -> bytes:
        """Return the row as one line of JSON."""
        row: dict[str, Json] = {"id": self.id, "features": [*sorted(self.found)]}
        return line_of(row | {"rejected": self.rejected} if self.rejected else row)


@dataclass(frozen=True, slots=True)
class Auditor:
    """How rows are audited.

    As rows of `dataset`, with tools that travel as `tools` says, for control tokens of the formats of `spelled`.
    """

    dataset: str
    tools: ToolMode
    spelled: ControlText

    def prompt(self, prompt: Prompt) -> AuditedRow:
        """Audit one prompt."""
        findings = [*findings_in(prompt, self.tools, defaults_of(prompt.dataset, self.dataset)), *shape_of(prompt)]
        if (spelled := self.spelled.first_in(prompt)) is not None:
            findings.append(Finding(Feature.SPECIAL_TEXT, f"it spells {spelled[0]}", spelled[1]))
        found: Findings = {}
        for finding in findings:
            found.setdefault(finding.feature, (finding.what, finding.where))
        return AuditedRow(prompt.id, found)

    def line(self, line: Prompt | RefusedLine | Rejected) -> AuditedRow:
        """Audit a line that may be no prompt."""
        if isinstance(line, Prompt):
            return self.prompt(line)
        if isinstance(line, RefusedLine):
            return AuditedRow(line.id, rejected=str(line.refusal.reason))
        own = (line.row or {}).get("id") if line.id is None else line.id
        return AuditedRow(own if isinstance(own, str) else None, _signs_in_rejected(line), str(line.reason))

    def answers(self, dataset: Dataset, block: Block) -> list[AuditedRow]:
        """Audit every row of a block, in order."""
        return [self.line(outcome) for _, outcome in outcomes_of(dataset, block)]


def _signs_in_rejected(rejected: Rejected) -> Findings:
    """Return the signs of tools in a rejected row's messages."""
    messages = (rejected.row or {}).get("messages")
    if not isinstance(messages, list):
        return {}
    signs = signs_of([each for each in messages if isinstance(each, dict)], ())
    return {Feature(sign.kind): (sign.what, sign.where) for sign in signs}


@cache
def defaults_of(*datasets: str) -> frozenset[Feature]:
    """Return the default features of these datasets."""
    known = (DATASETS[name].defaults for name in datasets if name in DATASETS)
    return frozenset(Feature(feature) for features in known for feature in features)


@dataclass(slots=True)
class FeatureRows:
    """How many rows have a feature, and the first ones."""

    rows: int = 0
    first: list[dict[str, Json]] = field(default_factory=list)


@dataclass(slots=True)
class Audit:
    """The sum over rows, taken one by one in order."""

    auditor: Auditor
    most_named: int = FIRST
    rows: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    features: dict[Feature, FeatureRows] = field(default_factory=dict)
    _lines: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def prompts(self) -> int:
        return self.rows - self.rejected.total()

    def take(self, row: AuditedRow) -> None:
        """Count one row."""
        self.rows += 1
        self._lines.update(row.line())
        if row.rejected:
            self.rejected[row.rejected] += 1
            return
        for feature, (what, where) in row.found.items():
            found = self.features.setdefault(feature, FeatureRows())
            found.rows += 1
            if len(found.first) < self.most_named:
                found.first.append({"row": self.rows, "id": row.id, "what": what, "where": where})

    def document(self) -> dict[str, Json]:
        """Return the audit as plain JSON, without the source's place."""
        prompts = self.prompts
        features: dict[str, Json] = {
            str(feature): {
                "rows": found.rows,
                "share": round(found.rows / max(prompts, 1), 6),
                "first": [*found.first],
            }
            for feature, found in sorted(self.features.items())
        }
        return {
            "audit": 1,
            "dataset": self.auditor.dataset,
            "tools": str(self.auditor.tools),
            "special_text_of": [*self.auditor.spelled.formats],
            "rows": self.rows,
            "prompts": prompts,
            "rejected": dict(sorted(self.rejected.items())),
            "features": features,
            "rows_sha256": self._lines.hexdigest(),
        }

    @property
    def sha256(self) -> str:
        """The digest of the document."""
        return hashlib.sha256(canonical(self.document())).hexdigest()

    def check(self) -> None:
        """Raise AuditError where no row gives a prompt."""
        if not self.prompts:
            reasons = ", ".join(f"{number} {reason}" for reason, number in self.rejected.most_common())
            raise AuditError(f"none of {self.rows} rows gives a prompt ({reasons or 'there are none'})")


def audited_rows(auditor: Auditor, dataset: Dataset, source: Path | str, workers: int = 1) -> Iterator[AuditedRow]:
    """Audit every row of a source, in order.

    A row with an earlier row's id is rejected, as `prompts_of` does. Raises SourceError, WorkerError.
    """
    with ExitStack() as stack:
        blocks = gathered(dataset, blocks_of(source, dataset.schema))
        answers = stack.enter_context(closing(map_in_order(blocks, partial(auditor.answers, dataset), workers)))
        ids = stack.enter_context(closing(DiskSet()))
        for row in (row for block in answers for row in block):
            if row.rejected or row.id is None or ids.add(row.id):
                yield row
            else:
                yield AuditedRow(row.id, rejected=Reject.REPEATED)


def audit_of(auditor: Auditor, lines: Iterable[Prompt | RefusedLine | Rejected]) -> Audit:
    """Return the audit of a run's lines."""
    audit = Audit(auditor)
    for line in lines:
        audit.take(auditor.line(line))
    return audit
