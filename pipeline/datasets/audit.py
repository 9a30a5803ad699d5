"""The audit of a whole source: how many rows use what, with the first of each as evidence to look at.

Guarantees: rows are prompts and rejected rows, counted both; memory does not grow with them; the digest is that of the
audit's canonical JSON, in which a hash over every row's own line binds the rows. Refuses a source that gives no prompt.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

from pipeline.base.disk_sets import DiskSet as SeenKeys
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
"""Each feature of a row with the first thing that shows it, and where."""


class AuditError(Exception):
    """A source that gives no prompt to audit."""


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """One row: what was found in it, and why it is no prompt where it is none."""

    id: str | None
    found: Findings = field(default_factory=dict)
    rejected: str = ""

    def line(self) -> bytes:
        """The row as one line of JSON."""
        row: dict[str, Json] = {"id": self.id, "features": [*sorted(self.found)]}
        return line_of(row | {"rejected": self.rejected} if self.rejected else row)


@dataclass(frozen=True, slots=True)
class Auditor:
    """How rows are looked at: as whose dataset, with tools travelling how, for control tokens of which formats."""

    dataset: str
    tools: ToolMode
    spelled: ControlText

    def prompt(self, prompt: Prompt) -> AuditedRow:
        """What one prompt uses."""
        found: Findings = {}
        for seen in self._seen(prompt):
            found.setdefault(seen.feature, (seen.what, seen.where))
        return AuditedRow(prompt.id, found)

    def line(self, line: Prompt | RefusedLine | Rejected) -> AuditedRow:
        """The same of what may be no prompt."""
        if isinstance(line, Prompt):
            return self.prompt(line)
        if isinstance(line, RefusedLine):
            return AuditedRow(line.id, rejected=str(line.refusal.reason))
        own = (line.row or {}).get("id") if line.id is None else line.id
        return AuditedRow(own if isinstance(own, str) else None, _glimpsed(line), str(line.reason))

    def answers(self, dataset: Dataset, block: Block) -> list[AuditedRow]:
        """One a row of the block, in order."""
        return [self.line(outcome) for _, outcome in outcomes_of(dataset, block)]

    def _seen(self, prompt: Prompt) -> Iterator[Finding]:
        yield from findings_in(prompt, self.tools, defaults_of(prompt.dataset, self.dataset))
        yield from shape_of(prompt)
        if (found := self.spelled.first_in(prompt)) is not None:
            yield Finding(Feature.SPECIAL_TEXT, f"it spells {found[0]}", found[1])


def _glimpsed(rejected: Rejected) -> Findings:
    """The signs of tools in a row that is no prompt but has messages, so that its own line does not hide them."""
    messages = (rejected.row or {}).get("messages")
    if not isinstance(messages, list):
        return {}
    signs = signs_of([each for each in messages if isinstance(each, dict)], ())
    return {Feature(sign.kind): (sign.what, sign.where) for sign in signs}


@cache
def defaults_of(*datasets: str) -> frozenset[Feature]:
    """What a dataset's text cannot tell: by the row's own dataset, and by the one that was named."""
    known = (DATASETS[name].defaults for name in datasets if name in DATASETS)
    return frozenset(Feature(feature) for features in known for feature in features)


@dataclass(slots=True)
class FeatureRows:
    """A feature's rows: how many, and the first of them."""

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
        """The audit as plain JSON; where the source lies is no part of it."""
        return {
            "audit": 1,
            "dataset": self.auditor.dataset,
            "tools": str(self.auditor.tools),
            "special_text_of": [*self.auditor.spelled.formats],
            "rows": self.rows,
            "prompts": self.prompts,
            "rejected": dict(sorted(self.rejected.items())),
            "features": {str(feature): self._feature(found) for feature, found in sorted(self.features.items())},
            "rows_sha256": self._lines.hexdigest(),
        }

    @property
    def sha256(self) -> str:
        """The digest of the document."""
        return hashlib.sha256(canonical(self.document())).hexdigest()

    def _feature(self, found: FeatureRows) -> dict[str, Json]:
        return {"rows": found.rows, "share": round(found.rows / max(self.prompts, 1), 6), "first": [*found.first]}

    def check(self) -> None:
        """Raises AuditError where nothing could be looked at."""
        if not self.prompts:
            told = ", ".join(f"{number} {reason}" for reason, number in self.rejected.most_common())
            raise AuditError(f"none of {self.rows} rows gives a prompt ({told or 'there are none'})")


def audited_rows(auditor: Auditor, dataset: Dataset, source: Path | str, workers: int = 1) -> Iterator[AuditedRow]:
    """Every row of the source, in order; a row that says an earlier row's id again is rejected, as `prompts_of` does.

    Raises SourceError, WorkerError.
    """
    with ExitStack() as stack:
        blocks = gathered(dataset, blocks_of(source, dataset.schema))
        work = _Work(auditor, dataset)
        answers = stack.enter_context(closing(map_in_order(blocks, work, workers)))
        ids = stack.enter_context(closing(SeenKeys()))
        for row in (row for block in answers for row in block):
            if row.rejected or row.id is None or ids.add(row.id):
                yield row
            else:
                yield AuditedRow(row.id, rejected=Reject.REPEATED)


@dataclass(frozen=True, slots=True)
class _Work:
    auditor: Auditor
    dataset: Dataset

    def __call__(self, block: Block) -> list[AuditedRow]:
        return self.auditor.answers(self.dataset, block)


def audit_of(auditor: Auditor, lines: Iterable[Prompt | RefusedLine | Rejected]) -> Audit:
    """The audit of lines that are about to be asked."""
    audit = Audit(auditor)
    for line in lines:
        audit.take(auditor.line(line))
    return audit
