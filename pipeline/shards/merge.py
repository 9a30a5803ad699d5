"""One training set of several runs, by a policy.

Rows that the policy keeps go to new shards, every other row to a file with its reason. Guarantees: the rows in are the
rows out plus the rows set aside, both counted. The set is written whole or not at all. The same inputs under the same
policy give the same bytes. Memory does not grow with the rows. A row is copied as it is: ids, evidence, route.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.base.disk_sets import DiskSet
from pipeline.base.files import sync_folder, write_whole
from pipeline.base.json_lines import canonical, line_of
from pipeline.records import STRENGTH, Evidence, Json, weak_evidence
from pipeline.shards.manifest import VERSION, ManifestError, write_document
from pipeline.shards.merge_inputs import Input, MergeError
from pipeline.shards.shards import ROWS_A_SHARD, SCHEMA, Shard, cut_rows

SET_ASIDE = "set_aside.jsonl"
BYTES_A_SHARD = 128 * 1024 * 1024
"""A shard of long rows has fewer of them."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """Which rows are kept.

    Those of this evidence or stronger, at most `caps[dataset]` of a dataset, and each prompt once if `dedup`. A row is
    worth the weaker evidence of output and prompt; with `min_prompt_evidence` each has its own limit. A cap of `B8`
    holds for its variants (`B8-nebius`) together. Cut rows are kept and counted: training leaves them out.
    """

    min_evidence: Evidence = Evidence.COUNTED
    caps: Mapping[str, int] = field(default_factory=dict)
    dedup: bool = False
    min_prompt_evidence: Evidence | None = None

    def document(self) -> dict[str, Json]:
        """Return the policy as JSON."""
        document: dict[str, Json] = {"min_evidence": str(self.min_evidence)}
        if self.min_prompt_evidence is not None:
            document["min_prompt_evidence"] = str(self.min_prompt_evidence)
        return document | {"caps": dict(self.caps), "dedup": self.dedup}


@dataclass(slots=True)
class MergeCell:
    """Counts of one dataset on one route.

    Tokens are those of kept rows.
    """

    rows_in: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cut: int = 0
    evidence: Counter[str] = field(default_factory=Counter)
    prompt_evidence: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Merged:
    """The set that was written: its table and its files."""

    inputs: Sequence[Input]
    policy: MergePolicy
    cells: dict[tuple[str, str], MergeCell] = field(default_factory=dict)
    """The table, by dataset and route."""
    shards: list[Shard] = field(default_factory=list)
    datasets: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The datasets of each run."""

    def cell(self, dataset: str, route: str) -> MergeCell:
        return self.cells.setdefault((dataset, route), MergeCell())

    def usd(self, dataset: str, route: str) -> str | None:
        """Return what a dataset cost on a route, if known.

        None where one of its runs asked several datasets at once.
        """
        runs = [each for each in self.inputs if each.route == route and dataset in self.datasets[each.run]]
        if any(len(self.datasets[each.run] - {""}) > 1 for each in runs):
            return None
        paid = [each for each in runs if dataset or self.datasets[each.run] == {""}]
        return f"{sum((each.usd for each in paid), start=Decimal(0)):f}"

    def set_aside(self, reason: str) -> int:
        """Return the rows set aside for this reason."""
        return sum(cell.set_aside[reason] for cell in self.cells.values())

    def total(self, name: str) -> int:
        """Return the sum of a count over the table."""
        values = (getattr(cell, name) for cell in self.cells.values())
        return sum(value.total() if isinstance(value, Counter) else value for value in values)

    def count(self, given: Input, batch: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Count a batch; a row without a reason is kept."""
        self.datasets[given.run] |= set(batch.column("dataset").to_pylist())
        names = (batch.column(name).to_pylist() for name in ("dataset", "route", "evidence", "prompt_evidence"))
        sizes = (pc.list_value_length(batch.column(name)).to_pylist() for name in ("prompt_ids", "output_ids"))
        told = zip(reasons, *names, *sizes, cut_rows(batch), strict=True)
        for reason, dataset, route, grade, prompt_grade, prompt, output, cut in told:
            cell = self.cell(dataset, route)
            cell.rows_in += 1
            if reason:
                cell.set_aside[reason] += 1
                continue
            cell.rows += 1
            cell.cut += cut
            cell.evidence[grade] += 1
            cell.prompt_evidence[prompt_grade] += 1
            cell.prompt_tokens += prompt
            cell.output_tokens += output

    def metadata(self) -> dict[str, str]:
        """Return the metadata of shards: run, format, vocabulary.

        The run's name is a digest of what the set is made of.
        """
        parts: dict[str, Json] = {"policy": self.policy.document(), "inputs": [each.sha256 for each in self.inputs]}
        run = hashlib.sha256(canonical(parts)).hexdigest()[:32]
        settings = self.inputs[0].settings
        return {"run": run, **{key: str(settings[key]) for key in ("format", "tokenizer_sha256")}}


def merge(inputs: Sequence[Input], policy: MergePolicy, out: Path, rows_a_shard: int = ROWS_A_SHARD) -> Merged:
    """Write the set into a new or empty folder.

    Raises MergeError, OSError.

        merged = merge(read_inputs([Path("runs/a"), Path("runs/b")]), MergePolicy(dedup=True), Path("set"))
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MergeError(f"{out} is there already and not empty: give a new folder")
    merged = Merged(inputs, policy)
    for given in inputs:
        for (dataset, reason), number in given.refused.items():
            merged.cell(dataset, given.route).refused[reason] += number
            merged.datasets[given.run] |= {dataset}
    with _replacing(out) as folder:
        _write_rows(merged, folder, rows_a_shard)
        rows_in, kept, aside = (merged.total(name) for name in ("rows_in", "rows", "set_aside"))
        named = sum(shard["rows"] for given in inputs for shard in given.document["shards"])
        if not rows_in == kept + aside == named:
            raise MergeError(f"{named} rows became {kept} kept and {aside} set aside: please report it")
        if not kept:
            what = f"the policy keeps none of {rows_in} rows, so nothing was written"
            if merged.set_aside("weak_prompt_evidence"):
                what += ". --min-prompt-evidence counted keeps prompts that are known by their count alone"
            raise MergeError(f"{what}. Ask for less, or merge more")
        try:
            write_document(folder, document_of(merged, folder), sign=all(each.signer for each in inputs))
        except ManifestError as error:
            raise MergeError(str(error)) from error
    return merged


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes `out` if the block succeeds.

    It is removed if the block fails.
    """
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
        row_filter = stack.enter_context(closing(MergeFilter(merged.policy)))
        shards = stack.enter_context(closing(_ShardWriter(folder, merged.metadata(), rows_a_shard)))
        for given in merged.inputs:
            for batch in given.batches():
                reasons = [row_filter.why_not(batch, row) for row in range(batch.num_rows)]
                merged.count(given, batch, reasons)
                for row, reason in enumerate(reasons):
                    if reason:
                        names = ("id", "dataset", "route", "evidence", "prompt_evidence")
                        line = {name: batch.column(name)[row].as_py() for name in names}
                        line |= {"reason": reason, "from": given.folder.name, "run": given.run}
                        aside.write(line_of(line))
                shards.take(batch.filter(pa.array([not reason for reason in reasons])))
        shards.close()
        merged.shards = shards.done
        row_filter.check()


class MergeFilter:
    """Decides which rows are kept; remembers those it kept."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._ids, self._prompts = DiskSet(), DiskSet()
        self._taken: Counter[str] = Counter()
        self._met: set[str] = set()

    def why_not(self, batch: pa.RecordBatch, row: int) -> str:
        """Return why a row is set aside; "" keeps it.

        Raises MergeError for an unknown grade of evidence.
        """
        names = ("id", "dataset", "evidence", "prompt_evidence")
        row_id, dataset, grade, prompt_grade = (str(batch.column(name)[row].as_py()) for name in names)
        cap = next((name for name in self._policy.caps if dataset == name or dataset.startswith(f"{name}-")), None)
        self._met |= {cap} if cap is not None else set()
        for each in (grade, prompt_grade):
            if each not in STRENGTH:
                raise MergeError(f"row {row_id} has the evidence {each!r}; there are {', '.join(Evidence)}")
        if weak := weak_evidence(grade, prompt_grade, self._policy.min_evidence, self._policy.min_prompt_evidence):
            return weak
        if cap is not None and self._taken[cap] >= self._policy.caps[cap]:
            return "over_cap"
        if (key := f"{dataset}\n{row_id}") in self._ids:
            return "repeated_id"
        if self._policy.dedup:
            ids = batch.column("prompt_ids")[row].values
            data = memoryview(ids.buffers()[1])[4 * ids.offset : 4 * (ids.offset + len(ids))]
            if not self._prompts.add(hashlib.blake2b(data, digest_size=16).hexdigest()):
                return "duplicate_prompt"
        self._ids.add(key)
        if cap is not None:
            self._taken[cap] += 1
        return ""

    def check(self) -> None:
        """Refuse a cap on a dataset without rows, perhaps misspelt.

        Raises MergeError.
        """
        if absent := sorted(self._policy.caps.keys() - self._met):
            raise MergeError(f"no row is of the dataset {absent[0]!r} that --cap names. Leave the cap out")

    def close(self) -> None:
        self._ids.close()
        self._prompts.close()


class _ShardWriter:
    """Writes new shards of equally many rows, as rows come."""

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
        """Write the rows that wait."""
        if not self._waiting:
            return
        path = self._folder / f"shard-{len(self.done):05d}.parquet"
        table = pa.Table.from_batches(self._waiting).cast(SCHEMA).replace_schema_metadata(self._schema.metadata)
        write_whole(path, lambda file: pq.write_table(table, file, compression="zstd"))
        sizes = [int(pc.sum(pc.list_value_length(table.column(n))).as_py()) for n in ("prompt_ids", "output_ids")]
        grades = dict(sorted(Counter(table.column("evidence").to_pylist()).items()))
        prompts = dict(sorted(Counter(table.column("prompt_evidence").to_pylist()).items()))
        counts = table.num_rows, sizes[0], sizes[1], grades, prompts, sum(cut_rows(table))
        self.done.append(Shard(path.name, _digest(path), *counts))
        self._waiting, self._rows, self._bytes = [], 0, 0


def document_of(merged: Merged, folder: Path) -> dict[str, Json]:
    """Return the manifest of the set."""
    common: dict[str, Json] = dict(merged.metadata())
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
    """Yield a line for each dataset on each route.

    `usd` is null where one of its runs asked several datasets at once.
    """
    for (dataset, route), cell in sorted(merged.cells.items()):
        line: dict[str, Json] = {"dataset": dataset, "route": route, "rows_in": cell.rows_in, "rows": cell.rows}
        line |= {"prompt_tokens": cell.prompt_tokens, "output_tokens": cell.output_tokens}
        line |= {"evidence": dict(sorted(cell.evidence.items())), "set_aside": dict(sorted(cell.set_aside.items()))}
        line |= {"prompt_evidence": dict(sorted(cell.prompt_evidence.items())), "cut": cell.cut}
        line |= {"refused": dict(sorted(cell.refused.items()))}
        yield line | {"usd": merged.usd(dataset, route)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
