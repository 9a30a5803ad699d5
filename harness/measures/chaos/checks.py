"""Check a run after chaos: nothing lost, doubled, wrong, overspent.

Guarantees: judged by what the emulator recorded on its side and what lies on disk on the client's. Each violation is
counted by name and shown by an example.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from harness.fixtures.runs import World
from harness.measures.chaos.faults import FAULTS
from pipeline.base.money import pico
from pipeline.base.prompts import prompt_of
from pipeline.generation.backends.hosted import sample_id
from pipeline.generation.ledger_schema import reading

PASSES = {fault.name: fault.passes for fault in FAULTS}
UNSETTLED = ("reserved", "answered", "unknown")


@dataclass(slots=True)
class Attempts:
    """One row's attempts in the ledger.

    Money in pico-dollars; hashes of answers that came whole.
    """

    settled: int = 0
    unsettled_worst: int = 0
    states: list[str] = field(default_factory=list)
    hashes: set[str] = field(default_factory=set)

    def add(self, other: Attempts) -> None:
        self.settled += other.settled
        self.unsettled_worst += other.unsettled_worst
        self.states += other.states
        self.hashes |= other.hashes


@dataclass(slots=True)
class ChaosFinding:
    """Violations, examples and counts of one run."""

    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def wrong(self, kind: str, detail: str) -> None:
        self.violations[kind] += 1
        self.examples.append(f"{kind}: {detail}")

    def add(self, other: ChaosFinding) -> None:
        self.violations.update(other.violations)
        self.examples += other.examples
        self.counts.update(other.counts)


def check(world: World, log: Path) -> ChaosFinding:
    """Compare both sides, once the emulator has ended."""
    found, sides = ChaosFinding(), Sides.of(world, log)
    _check_rows(found, world, sides)
    _check_money(found, sides)
    for sample, attempts in sides.ledger.items():
        if not attempts.hashes <= sides.sent[sample]:
            found.wrong("changed answer", f"{sides.rows[sample]}: bytes that were not sent so")
    return found


@dataclass(slots=True)
class Sides:
    """Both sides by sample id.

    `rows`: the row's name. `billed`: pico-dollars of each charge. `faults` and `sent`: what the wire did, and hashes of
    whole bodies. `ledger`: the client's attempts.
    """

    rows: Mapping[str, str]
    billed: Mapping[str, list[int]]
    faults: Mapping[str, list[str]]
    sent: Mapping[str, set[str]]
    ledger: Mapping[str, Attempts]

    @classmethod
    def of(cls, world: World, log: Path) -> Sides:
        lines = (world.folder / "prompts.jsonl").read_text().splitlines()
        rows = {sample_id(prompt): prompt.id for prompt in map(prompt_of, map(json.loads, lines))}
        billed, faults = defaultdict[str, list[int]](list), defaultdict[str, list[str]](list)
        sent, ledger = defaultdict[str, set[str]](set), defaultdict[str, Attempts](Attempts)
        for entry in world.entries():
            billed[str(entry.sample_id)].append(pico(Decimal(entry.cost)))
        for line in map(json.loads, log.read_text().splitlines()):
            faults[line["sample"]].append(line["fault"])
            sent[line["sample"]].add(line["sha256"])
        names = {name: sample for sample, name in rows.items()}
        for row, attempt in _attempts(world.ledger):
            ledger[names[row]].add(attempt)
        return cls(rows, billed, faults, sent, ledger)


def _attempts(path: Path) -> Iterator[tuple[str, Attempts]]:
    columns = "row, state, worst_pico, cost_pico, raw, headers"
    sql = f"SELECT {columns} FROM requests LEFT JOIN answers USING (identity, attempt)"  # noqa: S608 - constant text
    with reading(path) as db:
        for row, state, worst, cost, raw, headers in db.execute(sql) if db else ():
            whole = raw is not None and json.loads(headers).get("complete") is True
            hashes = {hashlib.sha256(raw).hexdigest()} if whole else set()
            yield row, Attempts(cost if state == "settled" else 0, worst if state in UNSETTLED else 0, [state], hashes)


def _check_rows(found: ChaosFinding, world: World, sides: Sides) -> None:
    accepted, refused = [str(row["id"]) for row in world.rows()], [str(line["id"]) for line in world.quarantine()]
    there, in_shards = Counter(accepted + refused), frozenset(accepted)
    for name in world.false_rows():
        found.wrong("wrong row", name)
    for name, times in there.items():
        if times > 1:
            found.wrong("row twice", name)
    for sample, name in sides.rows.items():
        _check_row(found, sides, sample, is_there=name in there, is_accepted=name in in_shards)
    found.counts.update(accepted=len(accepted), refused=len(refused), rows=len(sides.rows))


def _check_row(found: ChaosFinding, sides: Sides, sample: str, *, is_there: bool, is_accepted: bool) -> None:
    name, states, faults = sides.rows[sample], sides.ledger[sample].states, sides.faults[sample]
    if sides.billed[sample] and not {"answered", "settled", "unknown"} & set(states):
        found.wrong("lost paid answer", f"{name}: billed, and the ledger has {states}")
    if len(sides.billed[sample]) > 1:
        found.wrong("double payment", f"{name}: {len(sides.billed[sample])} times, after {faults}")
    if not is_there and states[-1:] != ["unknown"]:
        found.wrong("lost row", f"{name}: {states}, after {faults}")
    if is_accepted and not any(PASSES[fault] for fault in faults):
        found.wrong("row that must be refused", f"{name}: {faults}")
    found.counts["unknown"] += states[-1:] == ["unknown"]


def _check_money(found: ChaosFinding, sides: Sides) -> None:
    for sample in sides.rows:
        billed, ours = sum(sides.billed[sample]), sides.ledger[sample]
        if not ours.settled <= billed <= ours.settled + ours.unsettled_worst:
            detail = (
                f"{sides.rows[sample]}: billed {billed}, settled {ours.settled}, open {ours.unsettled_worst} at most"
            )
            found.wrong("money", f"{detail}, after {sides.faults[sample]}")
        found.counts["billed_pico"] += billed
        found.counts["settled_pico"] += ours.settled
        found.counts["unsettled_worst_pico"] += ours.unsettled_worst
        found.counts["billed_unsettled_pico"] += billed if ours.unsettled_worst else 0
    if found.counts["settled_pico"] != found.counts["billed_pico"] - found.counts["billed_unsettled_pico"]:
        found.wrong("money", "what is settled is not what was billed for it, in all")
