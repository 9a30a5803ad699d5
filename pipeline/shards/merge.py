"""One training set of several runs: rows that the policy keeps, in new shards, and every other row with its reason.

Guarantees: rows in are rows out and rows set aside, counted both; the set is written whole or not at all, and the same
inputs under the same policy give the same bytes; memory does not grow with the rows. A row is copied as it is: its ids,
its evidence, its route.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.base.disk_sets import DiskSet
from pipeline.base.files import sync_folder, write_whole
from pipeline.base.json_lines import canonical, line_of
from pipeline.records import STRENGTH, Evidence, Json
from pipeline.shards.manifest import MANIFEST, VERSION
from pipeline.shards.merge_inputs import Input, MergeError
from pipeline.shards.shards import ROWS_A_SHARD, SCHEMA, Shard

SET_ASIDE = "set_aside.jsonl"
BYTES_A_SHARD = 128 * 1024 * 1024
"""Where rows are long, a shard has fewer of them."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """Which rows are kept: of this evidence or stronger, at most so many a dataset, each prompt once if `dedup`.

    A cap of `B8` holds for its variants (`B8-nebius`) together.
    """

    min_evidence: Evidence = Evidence.COUNTED
    caps: Mapping[str, int] = field(default_factory=dict)
    dedup: bool = False

    def document(self) -> dict[str, Json]:
        """As plain JSON."""
        return {"min_evidence": str(self.min_evidence), "caps": dict(self.caps), "dedup": self.dedup}


@dataclass(slots=True)
class MergeCell:
    """What came of one dataset on one route; tokens are of kept rows."""

    rows_in: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    evidence: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Merged:
    """The set that was written: its table by dataset and route, and its files."""

    inputs: Sequence[Input]
    policy: MergePolicy
    cells: dict[tuple[str, str], MergeCell] = field(default_factory=dict)
    shards: list[Shard] = field(default_factory=list)
    asked: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The datasets of each run."""

    def cell(self, dataset: str, route: str) -> MergeCell:
        return self.cells.setdefault((dataset, route), MergeCell())

    def usd(self, dataset: str, route: str) -> str | None:
        """What the runs of a dataset on a route cost, where they asked nothing else; None where that is not known."""
        runs = [each for each in self.inputs if each.route == route and dataset in self.asked[each.run]]
        if any(len(self.asked[each.run] - {""}) > 1 for each in runs):
            return None
        paid = [each for each in runs if dataset or self.asked[each.run] == {""}]
        return f"{sum((each.usd for each in paid), start=Decimal(0)):f}"

    def total(self, name: str) -> int:
        """The sum of a count over the table."""
        values = (getattr(cell, name) for cell in self.cells.values())
        return sum(value.total() if isinstance(value, Counter) else value for value in values)


def merge(inputs: Sequence[Input], policy: MergePolicy, out: Path, rows_a_shard: int = ROWS_A_SHARD) -> Merged:
    """Write the set into `out`, which must be new or empty. Raises MergeError, OSError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MergeError(f"{out} is there already and not empty: give a new folder")
    merged = Merged(inputs, policy)
    for given in inputs:
        for (dataset, reason), number in given.refused.items():
            merged.cell(dataset, given.route).refused[reason] += number
            merged.asked[given.run] |= {dataset}
    with _beside(out) as folder:
        _write_rows(merged, folder, rows_a_shard)
        _check(merged)
        document = json.dumps(document_of(merged, folder), indent=2) + "\n"
        write_whole(folder / MANIFEST, lambda file: _fill(file, document))
    return merged


def _fill(file: BinaryIO, text: str) -> None:
    file.write(text.encode("ascii"))


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder that takes the place of `out` when this block ends well, and is gone when it does not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield folder
        folder.chmod(0o755)
        folder.replace(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_folder(out.parent)


def _write_rows(merged: Merged, folder: Path, rows_a_shard: int) -> None:
    with ExitStack() as stack:
        aside = stack.enter_context((folder / SET_ASIDE).open("wb"))
        sieve = stack.enter_context(closing(MergeFilter(merged.policy)))
        shards = stack.enter_context(closing(_Shards(folder, _metadata(merged), rows_a_shard)))
        for given in merged.inputs:
            for batch in given.batches():
                why = [sieve.why_not(batch, row) for row in range(batch.num_rows)]
                _count(merged, given, batch, why)
                for row, reason in enumerate(why):
                    if reason:
                        aside.write(_aside_line(batch, row, reason, given))
                shards.take(batch.filter(pa.array([not reason for reason in why])))
        shards.close()
        merged.shards = shards.done
        sieve.check()


class MergeFilter:
    """Why a row is set aside; it remembers what it let pass."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._least = STRENGTH[str(policy.min_evidence)]
        self._ids, self._prompts = DiskSet(), DiskSet()
        self._taken: Counter[str] = Counter()
        self._met: set[str] = set()

    def why_not(self, batch: pa.RecordBatch, row: int) -> str:
        """The reason, or "" for a row that is kept. Raises MergeError for a grade of evidence that is none."""
        row_id, dataset, grade = (str(batch.column(name)[row].as_py()) for name in ("id", "dataset", "evidence"))
        cap = next((name for name in self._policy.caps if dataset == name or dataset.startswith(f"{name}-")), None)
        self._met |= {cap} if cap is not None else set()
        if grade not in STRENGTH:
            raise MergeError(f"row {row_id} has the evidence {grade!r}; there are {', '.join(Evidence)}")
        if STRENGTH[grade] < self._least:
            return "weak_evidence"
        if cap is not None and self._taken[cap] >= self._policy.caps[cap]:
            return "over_cap"
        if (key := f"{dataset}\n{row_id}") in self._ids:
            return "repeated_id"
        if self._policy.dedup and not self._prompts.add(_prompt_key(batch, row)):
            return "duplicate_prompt"
        self._ids.add(key)
        if cap is not None:
            self._taken[cap] += 1
        return ""

    def check(self) -> None:
        """Raises MergeError for a cap on a dataset of which no row is here: its name may be misspelt."""
        if absent := sorted(self._policy.caps.keys() - self._met):
            raise MergeError(f"no row is of the dataset {absent[0]!r} that --cap names. Leave the cap out")

    def close(self) -> None:
        self._ids.close()
        self._prompts.close()


def _prompt_key(batch: pa.RecordBatch, row: int) -> str:
    ids = batch.column("prompt_ids")[row].values
    start = ids.offset * 4
    return hashlib.blake2b(memoryview(ids.buffers()[1])[start : start + 4 * len(ids)], digest_size=16).hexdigest()


def _count(merged: Merged, given: Input, batch: pa.RecordBatch, why: Sequence[str]) -> None:
    merged.asked[given.run] |= set(batch.column("dataset").to_pylist())
    names = (batch.column(name).to_pylist() for name in ("dataset", "route", "evidence"))
    sizes = (pc.list_value_length(batch.column(name)).to_pylist() for name in ("prompt_ids", "output_ids"))
    for reason, dataset, route, grade, prompt, output in zip(why, *names, *sizes, strict=True):
        cell = merged.cell(dataset, route)
        cell.rows_in += 1
        if reason:
            cell.set_aside[reason] += 1
            continue
        cell.rows += 1
        cell.evidence[grade] += 1
        cell.prompt_tokens += prompt
        cell.output_tokens += output


def _aside_line(batch: pa.RecordBatch, row: int, reason: str, given: Input) -> bytes:
    told = {name: batch.column(name)[row].as_py() for name in ("id", "dataset", "route", "evidence")}
    return line_of({**told, "reason": reason, "from": given.folder.name, "run": given.run})


class _Shards:
    """New shards of so many rows each, written as rows come."""

    def __init__(self, folder: Path, metadata: Mapping[str, str], rows_a_shard: int) -> None:
        self.done: list[Shard] = []
        self._folder = folder
        self._schema = SCHEMA.with_metadata(dict(metadata))
        self._most = rows_a_shard
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            some = batch.slice(0, self._most - self._rows)
            self._waiting.append(some)
            self._rows += some.num_rows
            batch = batch.slice(some.num_rows)
            self._bytes += some.nbytes
            if self._rows == self._most or self._bytes >= BYTES_A_SHARD:
                self.close()

    def close(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        path = self._folder / f"shard-{len(self.done):05d}.parquet"
        table = pa.Table.from_batches(self._waiting).cast(SCHEMA).replace_schema_metadata(self._schema.metadata)
        write_whole(path, lambda file: pq.write_table(table, file, compression="zstd"))
        sizes = [int(pc.sum(pc.list_value_length(table.column(n))).as_py()) for n in ("prompt_ids", "output_ids")]
        grades = dict(sorted(Counter(table.column("evidence").to_pylist()).items()))
        self.done.append(Shard(path.name, _digest(path), table.num_rows, sizes[0], sizes[1], grades))
        self._waiting, self._rows, self._bytes = [], 0, 0


def _check(merged: Merged) -> None:
    came, kept, aside = (merged.total(name) for name in ("rows_in", "rows", "set_aside"))
    named = sum(shard["rows"] for given in merged.inputs for shard in given.document["shards"])
    if not came == kept + aside == named:
        raise MergeError(f"{named} rows became {kept} kept and {aside} set aside: please report it")
    if not kept:
        raise MergeError(f"the policy keeps none of {came} rows, so nothing was written. Ask for less, or merge more")


def _run(merged: Merged) -> str:
    """A name for the set that says what it is made of."""
    parts: dict[str, Json] = {"policy": merged.policy.document(), "inputs": [each.sha256 for each in merged.inputs]}
    return hashlib.sha256(canonical(parts)).hexdigest()[:32]


def _metadata(merged: Merged) -> dict[str, str]:
    settings = merged.inputs[0].settings
    common = {key: str(settings[key]) for key in ("format", "tokenizer_sha256")}
    return {"run": _run(merged), **common}


def document_of(merged: Merged, folder: Path) -> dict[str, Json]:
    """The manifest of the set."""
    common: dict[str, Json] = dict(_metadata(merged))
    run = common.pop("run")
    settings: dict[str, Json] = {**common, "policy": merged.policy.document()}
    rows: dict[str, Json] = {name: merged.total(name) for name in ("rows_in", "rows", "set_aside", "refused")}
    return {
        "manifest": VERSION,
        "run": run,
        "settings": settings,
        "settings_sha256": hashlib.sha256(canonical(settings)).hexdigest(),
        "rows": rows,
        "tokens": {"prompt": merged.total("prompt_tokens"), "output": merged.total("output_tokens")},
        "table": list(table_of(merged)),
        "inputs": [each.summary() for each in merged.inputs],
        "shards": [asdict(shard) for shard in merged.shards],
        "set_aside": {"file": SET_ASIDE, "sha256": _digest(folder / SET_ASIDE)},
    }


def table_of(merged: Merged) -> Iterator[Json]:
    """A line for each dataset on each route. `usd` is null where one of its runs asked several datasets at once."""
    for (dataset, route), cell in sorted(merged.cells.items()):
        line: dict[str, Json] = {"dataset": dataset, "route": route, "rows_in": cell.rows_in, "rows": cell.rows}
        line |= {"prompt_tokens": cell.prompt_tokens, "output_tokens": cell.output_tokens}
        line |= {"evidence": dict(sorted(cell.evidence.items())), "set_aside": dict(sorted(cell.set_aside.items()))}
        line |= {"refused": dict(sorted(cell.refused.items()))}
        yield line | {"usd": merged.usd(dataset, route)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
